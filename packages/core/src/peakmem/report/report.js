"use strict";
/* One model of the page: its figures, linked by their steps. */
function explore(article) {
  const part = (name) => document.getElementById(name + article.dataset.suffix);
  const data = JSON.parse(part("curves").textContent);
  const stage = part("stage"), readout = part("readout");
  if (!stage || !readout || !data.curves.length) return;
  const bytes = new Intl.NumberFormat("en-US");
  const draw = (kind, name) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
    if (name) node.setAttribute("class", name);
    return node;
  };
  const pictures = Array.from(article.querySelectorAll("svg[data-steps]"), (svg, k) => {
    const { steps, left, right, top, foot } = svg.dataset;
    const p = { svg, steps: +steps, left: +left, right: +right, top: +top, foot: +foot };
    p.bars = Array.from(svg.querySelectorAll("[data-begin]"), (bar) => ({ bar, begin: +bar.dataset.begin, end: +bar.dataset.end }));
    p.ticks = Array.from(svg.querySelectorAll(".tick"));
    p.labels = Array.from(svg.querySelectorAll("text.halo.strong"));
    p.dots = Array.from(svg.querySelectorAll("circle.dot"), (dot) => ({ dot, x: +dot.getAttribute("cx") }));
    /* What is stretched when the figures are drawn closer, cut off at the frame. */
    const clip = draw("clipPath"), frame = draw("rect"), cut = draw("g"), moving = draw("g", "stretched");
    clip.id = "frame" + article.dataset.suffix + "-" + k;
    for (const [name, value] of [["x", p.left], ["y", p.top - 4], ["width", p.right - p.left], ["height", p.foot - p.top + 4]])
      frame.setAttribute(name, value);
    clip.appendChild(frame);
    const parts = svg.querySelectorAll("path.line, path.area, path.at[d*='V'], rect[data-begin]");
    if (parts.length) parts[0].before(cut);
    svg.append(clip);
    cut.setAttribute("clip-path", "url(#" + clip.id + ")");
    cut.append(moving);
    moving.append(...parts);
    p.moving = moving;
    p.axis = draw("g");
    p.cursor = draw("path", "cursor");
    svg.append(p.axis, p.cursor);
    return p;
  });
  const find = part("find"), found = part("found"), hits = part("hits");
  const live = part("live"), pinned = part("pinned"), release = part("release");
  const closer = part("closer"), wider = part("wider"), whole = part("whole"), span = part("span");
  const ROWS = 12, HITS = 20, LEAST = 8;
  let pin = null;
  let step = data.start;
  let from = 0, to = data.steps;

  const zoomed = () => to - from < data.steps;
  const ends = (p) => zoomed() ? [from, to] : [0, p.steps];
  const place = (p, at) => { const [a, b] = ends(p); return p.left + (p.right - p.left) * (at - a) / (b - a); };

  /* Round numbers under the middles of their steps, about eight of them. */
  function axis(p) {
    p.axis.replaceChildren();
    for (const tick of p.ticks) tick.style.display = zoomed() ? "none" : "";
    if (!zoomed()) return;
    const rough = (to - from) / 8, scale = Math.pow(10, Math.floor(Math.log10(rough)));
    const pace = Math.max(1, [1, 2, 5, 10].map((k) => k * scale).find((k) => k >= rough * 0.999));
    for (let at = Math.ceil(from / pace) * pace; at + 0.5 < to; at += pace) {
      const x = place(p, at + 0.5).toFixed(1), mark = draw("path", "axis"), text = draw("text", "soft");
      mark.setAttribute("d", "M" + x + " " + p.foot + "v4");
      text.setAttribute("x", x);
      text.setAttribute("y", p.foot + 18);
      text.setAttribute("text-anchor", "middle");
      text.textContent = bytes.format(at);
      p.axis.append(mark, text);
    }
  }

  function redraw() {
    for (const p of pictures) {
      const [a, b] = ends(p), by = p.steps / (b - a);
      const shift = p.left - by * (p.left + (p.right - p.left) * a / p.steps);
      p.moving.setAttribute("transform", zoomed() ? "matrix(" + by + " 0 0 1 " + shift + " 0)" : "");
      for (const label of p.labels) label.style.display = zoomed() ? "none" : "";
      for (const { dot, x } of p.dots) {
        const now = by * x + shift;
        dot.setAttribute("cx", now);
        dot.style.display = now < p.left - 1 || now > p.right + 1 ? "none" : "";
      }
      axis(p);
    }
    span.textContent = zoomed() ? "steps " + bytes.format(from) + " to " + bytes.format(to - 1) : "all " + bytes.format(data.steps) + " steps";
    closer.disabled = to - from <= LEAST;
    wider.disabled = whole.disabled = !zoomed();
  }

  /* The figures with `count` steps, the one that is read in the middle. */
  function look(count) {
    const many = Math.min(data.steps, Math.max(LEAST, Math.round(count)));
    from = Math.max(0, Math.min(data.steps - many, step - (many >> 1)));
    to = from + many;
    redraw();
    show(step);
  }

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
    if (step < from || step >= to) {
      const many = to - from;
      from = Math.max(0, Math.min(data.steps - many, step < from ? step : step - many + 1));
      to = from + many;
      redraw();
    }
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
      const x = place(p, step + 0.5);
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
    article.classList.toggle("pinned", pin !== null);
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
    const [a, b] = ends(p);
    return Math.max(a, Math.min(b - 1, Math.floor(a + (x - p.left) / (p.right - p.left) * (b - a))));
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
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const far = Math.max(1, Math.round(data.steps / 20));
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageDown: far, PageUp: -far, Home: -data.steps, End: data.steps };
    if (event.key in moves) {
      if (pin === null) show(step + moves[event.key]); else hold(step + moves[event.key]);
    } else if (event.key === "Enter" || event.key === " ") hold(pin === null ? step : null);
    else if (event.key === "+" || event.key === "=") look((to - from) / 2);
    else if (event.key === "-") look((to - from) * 2);
    else if (event.key === "0") look(data.steps);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && pin !== null) hold(null); });
  release.addEventListener("click", () => hold(null));
  find.addEventListener("input", search);
  closer.addEventListener("click", () => look((to - from) / 2));
  wider.addEventListener("click", () => look((to - from) * 2));
  whole.addEventListener("click", () => look(data.steps));
  redraw();
  part("explore").hidden = false;
  part("hint").hidden = false;
}

for (const article of document.querySelectorAll("article")) explore(article);
