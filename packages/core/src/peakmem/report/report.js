"use strict";
(() => {
  const data = JSON.parse(document.getElementById("curves").textContent);
  const stage = document.getElementById("stage");
  const readout = document.getElementById("readout");
  if (!stage || !readout || !data.curves.length) return;
  const bytes = new Intl.NumberFormat("en-US");
  const pictures = Array.from(stage.querySelectorAll("svg.memory"), (svg) => {
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
    cursor.setAttribute("class", "cursor");
    svg.appendChild(cursor);
    return { svg, cursor, ...svg.dataset };
  });
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
        ? "step " + bytes.format(moment[0] + 1) + " of " + bytes.format(curve.steps) + ", " + data.names[moment[2]] + ": "
        : "has no such step";
      row.querySelector(".size").textContent = moment ? bytes.format(moment[1]) + " B" : "";
      row.querySelector(".largest").textContent = !moment ? "" : moment[3].length
        ? "largest live: " + moment[3].map((b) => data.names[b[0]] + " (" + bytes.format(b[1]) + " B)").join(", ")
        : "nothing is live";
    }
    for (const p of pictures) {
      const x = +p.left + (p.right - p.left) * (step + 0.5) / p.steps;
      p.cursor.setAttribute("d", "M" + x.toFixed(1) + " " + p.top + "V" + p.foot);
    }
  }

  function point(event) {
    const p = pictures.find((picture) => picture.svg.getBoundingClientRect().width > 0);
    if (!p) return;
    const box = p.svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * p.svg.viewBox.baseVal.width;
    show(Math.floor((x - p.left) / (p.right - p.left) * p.steps));
  }

  stage.classList.add("live");
  stage.tabIndex = 0;
  stage.addEventListener("pointermove", point);
  stage.addEventListener("pointerdown", point);
  stage.addEventListener("focus", () => show(step));
  stage.addEventListener("keydown", (event) => {
    const far = Math.max(1, Math.round(data.steps / 20));
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageDown: far, PageUp: -far, Home: -data.steps, End: data.steps };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(step + moves[event.key]);
  });
  document.getElementById("hint").hidden = false;
})();
