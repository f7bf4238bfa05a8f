"use strict";
// Draws the charts at the width there is, lets the reader pick a network and read values off. Without it the page keeps
// its static pictures and tables.
(() => {
  const { chosen, cells, planes } = JSON.parse(document.getElementById("data").textContent);
  const FIELDS = ["dataset", "model", "layers", "variant"];
  const STYLES = 8, DECADES = 24, HEIGHT = 360;
  const MARGIN = { left: 66, right: 12, top: 12, bottom: 44 };
  const form = document.getElementById("controls");
  let cell = cells[chosen];

  const isNumber = (value) => typeof value === "number";
  const short = (value) => {
    if (!isNumber(value)) return "none";
    if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(2);
    return String(Number(value.toPrecision(3)));
  };
  const tick = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(0) : short(value));
  const svg = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const range = (first, count) => Array.from({ length: count }, (_, k) => first + k);

  // ---- what is shown -----------------------------------------------------------------------------------------------
  const last = (list) => list[list.length - 1];
  const line = (label, state, style) => ({ label, x: range(state.first, state.y.length), y: state.y, style });

  function companions() {
    const family = new Map();
    for (const other of cells) {
      const same = other.pick.dataset === cell.pick.dataset && other.pick.layers === cell.pick.layers;
      if (same && other.states.length && !family.has(other.pick.model)) family.set(other.pick.model, other);
    }
    if (cell.states.length) family.set(cell.pick.model, cell);
    return [...family.values()];
  }

  function energyChart(view, isLog) {
    const family = companions();
    const isShared = view === "models" && family.length > 1;
    const lines = isShared
      ? family.map((other, k) => line(other.pick.model, last(other.states), k))
      : cell.states.map((state, k) => line(state.label, state, 1 - k));
    const limits = cell.limits && {
      label: `limits of ${cell.pick.model}`,
      x: range(1, cell.limits.lower.length),
      lower: cell.limits.lower,
      upper: cell.limits.lower.map(() => cell.limits.upper), // c_max E(X_0), the same for all layers
    };
    const title = isShared
      ? `Energy of every layer after training: ${cell.pick.layers} layers, ${cell.pick.dataset}`
      : `Energy of every layer: ${cell.name}`;
    return { title, xLabel: "layer", yLabel: "Dirichlet energy", lines, band: limits, isLog };
  }

  function curveChart(chart) {
    const { x, selected } = cell.curves;
    return { ...chart, xLabel: "epoch", lines: chart.lines.map((one) => ({ ...one, x })), band: null, mark: selected };
  }

  // ---- axes --------------------------------------------------------------------------------------------------------
  function linearTicks(low, high, wanted) {
    const raw = (high - low) / Math.max(wanted - 1, 1);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
    const first = Math.ceil(low / step - 1e-9), end = Math.floor(high / step + 1e-9);
    return range(first, end - first + 1).map((k) => Number((k * step).toPrecision(12)));
  }

  function logTicks(low, high, wanted) {
    const first = Math.ceil(Math.log10(low)), end = Math.floor(Math.log10(high));
    const step = Math.max(1, Math.ceil((end - first + 1) / wanted));
    if (end - first >= 3) return range(first, end - first + 1).filter((k) => (k - first) % step === 0).map((k) => 10 ** k);
    const steps = range(first - 1, end - first + 2).flatMap((k) => [1, 2, 5].map((m) => Number(`${m}e${k}`)));
    const ticks = steps.filter((tick) => low <= tick && tick <= high);
    return ticks.length > 1 ? ticks : linearTicks(low, high, 5).filter((tick) => tick > 0);
  }

  function valueRange(chart) {
    const values = chart.lines.flatMap((one) => one.y).concat(chart.band ? [...chart.band.lower, ...chart.band.upper] : [])
      .filter(isNumber);
    const extreme = (list, better) => list.reduce((a, b) => (better(b, a) ? b : a));
    const positive = values.filter((value) => value > 0);
    if (chart.isLog && positive.length) {
      const top = extreme(positive, (a, b) => a > b);
      const bottom = Math.max(extreme(positive, (a, b) => a < b), top * 10 ** -DECADES);
      return { isLog: true, ends: bottom < top ? [bottom / 1.5, top * 1.5] : [bottom / 2, top * 2] };
    }
    const low = extreme([...values, 0], (a, b) => a < b), high = values.length ? extreme(values, (a, b) => a > b) : 1;
    return { isLog: false, ends: [low, high > low ? high : low + 1] };
  }

  // ---- drawing -----------------------------------------------------------------------------------------------------
  function scales(chart, width) {
    const xs = [...new Set(chart.lines.flatMap((one) => one.x))].sort((a, b) => a - b);
    const first = xs.length ? xs[0] : 0, end = xs.length ? last(xs) : 1;
    const { isLog, ends } = valueRange(chart);
    const bend = isLog ? Math.log10 : (value) => value;
    const span = (a, b) => (b > a ? b - a : 1);
    const right = width - MARGIN.right, bottom = HEIGHT - MARGIN.bottom;
    return {
      xs, isLog, ends, right, bottom,
      x: (value) => MARGIN.left + (value - first) / span(first, end) * (right - MARGIN.left),
      y: (value) => {
        const inside = Math.min(Math.max(value, ends[0]), ends[1]);
        return bottom - (bend(inside) - bend(ends[0])) / span(bend(ends[0]), bend(ends[1])) * (bottom - MARGIN.top);
      },
    };
  }

  function pathOf(one, at) {
    let pen = "M", steps = "", count = 0;
    one.x.forEach((x, k) => {
      if (!isNumber(one.y[k])) { pen = "M"; return; }
      steps += `${pen}${at.x(x).toFixed(1)} ${at.y(one.y[k]).toFixed(1)}`;
      pen = "L"; count += 1;
    });
    return count === 1 ? `${steps}h0.1` : steps;
  }

  function axes(chart, at, width) {
    const parts = [];
    for (const value of at.isLog ? logTicks(...at.ends, 7) : linearTicks(...at.ends, 6)) {
      const y = at.y(value);
      parts.push(svg("line", { class: "grid", x1: MARGIN.left, x2: at.right, y1: y, y2: y }));
      parts.push(svg("text", { class: "end", x: MARGIN.left - 8, y }, tick(value)));
    }
    const { xs } = at;
    const places = xs.length > 1 ? linearTicks(xs[0], last(xs), width < 480 ? 5 : 8) : xs;
    for (const value of places.filter(Number.isInteger)) {
      parts.push(svg("text", { class: "middle", x: at.x(value), y: at.bottom + 17 }, value));
    }
    parts.push(svg("line", { class: "axis", x1: MARGIN.left, x2: at.right, y1: at.bottom, y2: at.bottom }));
    parts.push(svg("text", { class: "middle", x: (MARGIN.left + at.right) / 2, y: HEIGHT - 8 }, chart.xLabel));
    const middle = (MARGIN.top + at.bottom) / 2;
    parts.push(svg("text", { class: "middle", transform: `translate(12 ${middle}) rotate(-90)` }, chart.yLabel));
    return parts;
  }

  function bandOf(band, at) {
    const there = band.x.map((x, k) => [x, band.lower[k], band.upper[k]]).filter(([, a, b]) => isNumber(a) && isNumber(b));
    const corners = [...there.map(([x, , high]) => [x, high]), ...there.reverse().map(([x, low]) => [x, low])];
    return svg("polygon", { class: "band", points: corners.map(([x, y]) => `${at.x(x).toFixed(1)},${at.y(y).toFixed(1)}`).join(" ") });
  }

  function keyOf(label, shape) {
    const item = document.createElement("li"), picture = svg("svg", { class: "key", viewBox: "0 0 30 8", "aria-hidden": "true" });
    picture.append(shape);
    item.append(picture, label);
    return item;
  }

  function keysOf(chart) {
    const lines = chart.lines.map((one) => keyOf(one.label, svg("path", { class: `line s${one.style % STYLES}`, d: "M1 4H29" })));
    return chart.band ? [...lines, keyOf(chart.band.label, svg("path", { class: "band", d: "M0 0H30V8H0Z" }))] : lines;
  }

  function draw(figure, chart) {
    const canvas = figure.querySelector(".canvas"), width = Math.max(Math.round(canvas.clientWidth), 240);
    const at = scales(chart, width);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": chart.title });
    picture.append(...axes(chart, at, width));
    if (chart.band) picture.append(bandOf(chart.band, at));
    if (isNumber(chart.mark)) {
      const x = at.x(Math.min(chart.mark, at.xs.length ? last(at.xs) : 0));
      picture.append(svg("line", { class: "mark", x1: x, x2: x, y1: MARGIN.top, y2: at.bottom }));
    }
    for (const one of chart.lines) picture.append(svg("path", { class: `line s${one.style % STYLES}`, d: pathOf(one, at) }));
    const pointer = svg("g", {});
    picture.append(pointer);
    canvas.replaceChildren(picture);
    figure.querySelector(".keys").replaceChildren(...keysOf(chart));
    figure.querySelector("figcaption").textContent = chart.title;
    read(figure, chart, at, pointer, picture);
  }

  // ---- values: a slider for keys and fingers, the same by hovering ---------------------------------------------------
  function read(figure, chart, at, pointer, picture) {
    const panel = figure.querySelector(".reading"), slider = panel.querySelector("input"), told = panel.querySelector("output");
    panel.hidden = at.xs.length === 0;
    if (panel.hidden) return;
    slider.max = at.xs.length - 1;
    slider.min = 0;
    const show = () => {
      const x = at.xs[Number(slider.value)];
      const parts = [], marks = [svg("line", { class: "cursor", x1: at.x(x), x2: at.x(x), y1: MARGIN.top, y2: at.bottom })];
      for (const one of chart.lines) {
        const value = one.y[one.x.indexOf(x)];
        if (!isNumber(value)) continue;
        parts.push(`${one.label} ${short(value)}`);
        marks.push(svg("circle", { class: `dot f${one.style % STYLES}`, cx: at.x(x), cy: at.y(value), r: 4.5 }));
      }
      const k = chart.band ? chart.band.x.indexOf(x) : -1;
      if (k >= 0) parts.push(`${chart.band.label} ${short(chart.band.lower[k])} to ${short(chart.band.upper[k])}`);
      const where = `${figure.dataset.unit} ${x}`;
      told.textContent = `${where}: ${parts.join("; ") || "no value"}`;
      slider.setAttribute("aria-valuetext", where);
      pointer.replaceChildren(...marks);
    };
    const follow = (event) => {
      const box = picture.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * picture.viewBox.baseVal.width;
      const distance = (k) => Math.abs(at.x(at.xs[k]) - x);
      slider.value = range(0, at.xs.length).reduce((best, k) => (distance(k) < distance(best) ? k : best), 0);
      show();
    };
    picture.addEventListener("pointermove", follow);
    picture.addEventListener("pointerdown", follow);
    slider.oninput = show;
    slider.value = at.xs.length - 1;
    show();
  }

  // ---- embeddings: a slider from the first layer to the last -----------------------------------------------------------
  function plane(figure) {
    const { counts, words, points } = planes[Number(figure.dataset.plane)];
    const paths = figure.querySelectorAll(".canvas path"), said = figure.querySelector("output");
    const label = figure.querySelector(".reading label"), slider = label.querySelector("input");
    const show = () => {
      const layer = points[Number(slider.value)], at = (k) => parseInt(layer.slice(2 * k, 2 * k + 2), 36);
      let first = 0;
      counts.forEach((count, group) => {
        paths[group].setAttribute("d", range(first, count).map((k) => `M${at(2 * k)} ${at(2 * k + 1)}h0`).join(""));
        first += count;
      });
      said.textContent = words[Number(slider.value)];
      slider.setAttribute("aria-valuetext", words[Number(slider.value)]);
    };
    slider.oninput = show;
    slider.value = points.length - 1;
    label.hidden = points.length < 2;
    show();
  }

  // ---- controls ----------------------------------------------------------------------------------------------------
  const picker = (field) => form.querySelector(`[data-pick=${field}]`);
  const valueOf = (name) => form.querySelector(`input[name=${name}]:checked`).value;

  function pick(field, value) {
    const rest = FIELDS.filter((name) => name !== field);
    const likeness = (other) => rest.filter((name) => other.pick[name] === cell.pick[name]).length;
    const able = cells.filter((other) => String(other.pick[field]) === value);
    cell = able.reduce((best, other) => (likeness(other) > likeness(best) ? other : best));
    show();
  }

  function fillPickers() {
    for (const field of FIELDS) {
      const label = picker(field), select = label.querySelector("select");
      const isOwn = (other) => field !== "variant" || FIELDS.slice(0, 3).every((name) => other.pick[name] === cell.pick[name]);
      const values = [...new Set(cells.filter(isOwn).map((other) => other.pick[field]))];
      values.sort((a, b) => (isNumber(a) ? a - b : String(a).localeCompare(String(b))));
      select.replaceChildren(...values.map((value) => new Option(value === "" ? "as in the recipe" : value, value)));
      select.value = cell.pick[field];
      label.hidden = values.length < 2;
    }
  }

  function show() {
    fillPickers();
    const energy = document.getElementById("energy"), reason = document.getElementById("untraced");
    const isTraced = cell.states.length > 0, family = companions();
    form.querySelector("#view").hidden = family.length < 2;
    form.querySelector("#scale").hidden = !energy;
    reason.textContent = cell.untraced;
    reason.hidden = isTraced;
    if (energy) {
      energy.hidden = !isTraced;
      if (isTraced) draw(energy, energyChart(valueOf("view"), valueOf("scale") === "log"));
    }
    cell.curves.charts.forEach((chart, k) => draw(document.getElementById(["loss", "score"][k]), curveChart(chart)));
  }

  function openTarget() {
    const target = location.hash.startsWith("#cell-") && document.getElementById(location.hash.slice(1));
    if (target) target.open = true;
  }

  form.querySelector(`input[value=${companions().length > 1 ? "models" : "states"}]`).checked = true;
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const field of FIELDS) picker(field).querySelector("select").addEventListener("change", (event) => pick(field, event.target.value));
  for (const radio of form.querySelectorAll("input[type=radio]")) radio.addEventListener("change", show);
  window.addEventListener("hashchange", openTarget);
  let opened = []; // on paper nothing can be unfolded
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("main details:not(.inner):not([open])")];
    for (const part of opened) part.open = true;
  });
  window.addEventListener("afterprint", () => { for (const part of opened) part.open = false; });
  let width = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(show, 100);
  });
  openTarget();
  for (const figure of document.querySelectorAll(".plane")) plane(figure);
  show();
})();
