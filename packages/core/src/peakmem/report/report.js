"use strict";
(() => {
  const data = JSON.parse(document.getElementById("curves").textContent);
  const stage = document.getElementById("stage");
  const readout = document.getElementById("readout");
  if (!stage || !readout || !data.curves.length) return;
  const bytes = new Intl.NumberFormat("en-US");
  const pictures = Array.from(document.querySelectorAll("svg[data-steps]"), (svg) => {
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
    cursor.setAttribute("class", "cursor");
    svg.appendChild(cursor);
    const bars = Array.from(svg.querySelectorAll("[data-begin]"), (bar) => ({ bar, begin: +bar.dataset.begin, end: +bar.dataset.end }));
    return { svg, cursor, bars, ...svg.dataset };
  });
  const find = document.getElementById("find"), found = document.getElementById("found"), hits = document.getElementById("hits");
  const live = document.getElementById("live"), pinned = document.getElementById("pinned"), release = document.getElementById("release");
  const ROWS = 12, HITS = 20;
  let pin = null;
  let step = data.start;

  /* The last step drawn at or before one: with every step drawn it is that step. */
  function at(curve, wanted) {
    let low = 0, high = curve.moments.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (curve.moments[middle][0] <= wanted) low = middle; else high = middle - 1;
    }
    return curve.moments[low];
  }

  function show(wanted) {
    step = Math.max(0, Math.min(data.steps - 1, wanted));
    for (const curve of data.curves) {
      const row = readout.querySelector('[data-curve="' + curve.name + '"]');
      const moment = step < curve.steps ? at(curve, step) : null;
      row.querySelector(".what").textContent = moment
        ? "step " + bytes.format(moment[0]) + " of 0.." + bytes.format(curve.steps - 1) + ", " + data.names[moment[2]] + ": "
        : "has no such step";
      row.querySelector(".size").textContent = moment ? bytes.format(moment[1]) + " B" : "";
      row.querySelector(".largest").textContent = !moment ? "" : moment[3].length
        ? "largest live: " + moment[3].map((b) => data.names[b[0]] + " (" + bytes.format(b[1]) + " B)").join(", ")
        : "nothing is live";
    }
    for (const p of pictures) {
      const x = +p.left + (p.right - p.left) * (step + 0.5) / p.steps;
      p.cursor.setAttribute("d", step < p.steps ? "M" + x.toFixed(1) + " " + p.top + "V" + p.foot : "");
      for (const b of p.bars) b.bar.classList.toggle("now", b.begin <= step && step < b.end);
    }
  }

  function make(kind, text, name) {
    const node = document.createElement(kind);
    if (text !== undefined) node.textContent = text;
    if (name) node.className = name;
    return node;
  }

  function row(table, cells) {
    const line = make("tr");
    cells.forEach((cell, k) => line.appendChild(make("td", cell, k ? "number" : "")));
    table.appendChild(line);
  }

  /* What is live at the pinned step: by operator, then the largest buffers. */
  function list() {
    live.replaceChildren();
    if (pin === null) return;
    for (const curve of data.curves) {
      if (pin >= curve.steps) continue;
      const there = curve.live.filter((b) => b[3] <= pin && pin <= b[4]);
      const sums = new Map();
      for (const b of there) {
        const sum = sums.get(b[1]) || [0, 0];
        sums.set(b[1], [sum[0] + 1, sum[1] + b[2]]);
      }
      const side = make("div"), table = make("table"), body = make("tbody");
      side.appendChild(make("h3", curve.called + ", step " + bytes.format(pin) + ": " + bytes.format(there.length) + " buffers, " +
        bytes.format(there.reduce((all, b) => all + b[2], 0)) + " B" + (curve.left ? " (of the largest " + bytes.format(curve.live.length) + ")" : "")));
      const ranked = Array.from(sums).sort((a, b) => b[1][1] - a[1][1]);
      for (const [op, [count, size]] of ranked.slice(0, ROWS))
        row(body, ["by " + data.names[op] + ", " + bytes.format(count), bytes.format(size) + " B"]);
      for (const b of there.slice(0, ROWS))
        row(body, [data.names[b[0]] + " (" + data.names[b[1]] + ")", bytes.format(b[2]) + " B"]);
      const rest = there.slice(ROWS);
      if (rest.length) row(body, [bytes.format(rest.length) + " smaller ones", bytes.format(rest.reduce((all, b) => all + b[2], 0)) + " B"]);
      table.appendChild(body);
      side.appendChild(table);
      live.appendChild(side);
    }
  }

  function hold(wanted) {
    pin = wanted === null ? null : Math.max(0, Math.min(data.steps - 1, wanted));
    document.body.classList.toggle("pinned", pin !== null);
    if (pin !== null) show(pin);
    pinned.textContent = pin === null ? "" : "Pinned at step " + bytes.format(pin) + ".";
    release.hidden = pin === null;
    list();
  }

  /* Buffers and statements whose names hold a text, as buttons that pin their first step. */
  function search() {
    const text = find.value.trim().toLowerCase();
    hits.replaceChildren();
    for (const p of pictures) for (const b of p.bars) {
      const title = b.bar.querySelector("title");
      b.bar.classList.toggle("hit", text !== "" && title !== null && title.textContent.toLowerCase().includes(text));
    }
    if (text === "") { found.textContent = ""; return; }
    const curve = data.curves[data.curves.length - 1], all = [];
    const named = data.names.map((name) => name.toLowerCase().includes(text));
    for (const b of curve.live) if (named[b[0]])
      all.push([data.names[b[0]] + ", " + bytes.format(b[2]) + " B, " + (b[3] < 0 ? "entry" : "step " + bytes.format(b[3])) + " to " +
        (b[4] >= curve.steps ? "the end" : bytes.format(b[4])), Math.max(0, b[3])]);
    curve.order.forEach((name, k) => { if (named[name]) all.push(["statement " + data.names[name] + ", step " + bytes.format(k), k]); });
    found.textContent = all.length + " found" + (all.length > HITS ? ", " + HITS + " shown" : "");
    for (const [label, at] of all.slice(0, HITS)) {
      const button = make("button", label);
      button.type = "button";
      button.addEventListener("click", () => hold(at));
      hits.appendChild(button);
    }
  }

  function under(p, event) {
    const box = p.svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * p.svg.viewBox.baseVal.width;
    return Math.floor((x - p.left) / (p.right - p.left) * p.steps);
  }

  for (const p of pictures) {
    p.svg.classList.add("linked");
    p.svg.addEventListener("pointermove", (event) => { if (pin === null) show(under(p, event)); });
    p.svg.addEventListener("click", (event) => {
      const at = Math.max(0, Math.min(data.steps - 1, under(p, event)));
      hold(at === pin ? null : at);
    });
  }

  stage.classList.add("live");
  stage.tabIndex = 0;
  stage.addEventListener("focus", () => show(step));
  stage.addEventListener("keydown", (event) => {
    const far = Math.max(1, Math.round(data.steps / 20));
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageDown: far, PageUp: -far, Home: -data.steps, End: data.steps };
    if (event.key in moves) {
      if (pin === null) show(step + moves[event.key]); else hold(step + moves[event.key]);
    } else if (event.key === "Enter" || event.key === " ") hold(pin === null ? step : null);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && pin !== null) hold(null); });
  release.addEventListener("click", () => hold(null));
  find.addEventListener("input", search);
  document.getElementById("explore").hidden = false;
  document.getElementById("hint").hidden = false;
})();
