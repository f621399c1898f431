// Inside one run, or two side by side: accuracy, freeze wave, gradient flow and sign flips over the same epochs.

const TOP = 254, MISSING = 255;
const FLOWS = [
  ["signal_norm", "signal: norm", "norm of the gradient that arrives at each layer's output"],
  ["signal_share", "signal: share ≠ 0", "share of the gradient at each layer's output that is not zero"],
  ["weight_norm", "weight: norm", "norm of the gradient of each layer's weight"],
  ["weight_share", "weight: share ≠ 0", "share of the gradient of each layer's weight that is not zero"],
];
const MAPS = {
  frozen: {
    title: "Freeze wave", rows: "sites, input first", ramp: "frozen", unit: "frozen", zero: "open",
    none: "Nothing is frozen progressively in this run: it has no StoMPP sites.",
    told: "Each row is a site, in the order the forward pass reaches them. Colour: share of its entries frozen to ±1.",
  },
  flow: {
    title: "Gradient flow", rows: "layers, input first", ramp: "flow", unit: "", zero: "exactly zero", hatch: true,
    none: "No gradients were recorded in this run.",
    told: "At the last step of each epoch. Hatched: exactly zero, no gradient arrives, the layers before a fully frozen activation no longer learn.",
  },
  flips: {
    title: "Sign flips", rows: "weights, input first", ramp: "flips", unit: "of signs flipped", zero: "none",
    none: "This run has no binary weights, so there are no signs to flip.",
    told: "Share of each weight's signs that changed since the epoch before.",
  },
};
const anatomy = { runs: ["", ""], flow: "signal_norm", inflated: new Map(), turn: 0 };
const allRuns = DATA.nets.flatMap((net) => net.series.flatMap((s) => s.runs.map((run) => ({
  id: `${s.id}.${run.seed}`, net, series: s, run, find: `${net.title} ${s.label} ${s.recipe}`,
}))));

function startAnatomy() {
  const [first, second] = suggested();
  anatomy.runs = [first, second];
  const set = (place) => (id) => { anatomy.runs[place] = id; drawAnatomy(); };
  document.getElementById("anatomy-controls").append(
    dropdown("Run", "run-a", pickable(0), first, set(0)), dropdown("Beside it", "run-b", pickable(1), second, set(1)),
    dropdown("Gradient", "flow-kind", FLOWS.map(([value, text]) => [value, text]), anatomy.flow, (v) => { anatomy.flow = v; drawAnatomy(); }));
  filter.changed.push(() => ["run-a", "run-b"].forEach((id, place) => setOptions(document.getElementById(id), pickable(place), anatomy.runs[place])));
  figures.push(drawAnatomy);
}

/* The runs that the filter finds, and the one that is shown. */
function pickable(place) {
  const found = allRuns.filter((entry) => matches(entry.find) || entry.id === anatomy.runs[place]);
  return [...(place ? [["", "nothing"]] : []), ...found.map((entry) => [entry.id, nameOf(entry), entry.net.title])];
}

const STATES = { done: "", open: " (unfinished)", broken: " (broke down)" };
const nameOf = ({ series, run }) => `${series.label} · seed ${run.seed}${STATES[run.state]}`;

/* A StoMPP run with the most to show, and an STE run of the same net. Plain nets first: the shortcuts of Bi-Real nets
   carry gradients around every site. */
function suggested() {
  const sites = (r) => r.run.history.parts.find((p) => p.name === "frozen")?.rows.length || 0;
  const worth = (r) => (r.run.state === "done" ? 1000 : 0) + sites(r) + (r.series.label === "StoMPP" ? 500 : 0) + (/^ResNet/.test(r.net.title) ? 250 : 0);
  const first = allRuns.reduce((a, b) => (worth(b) > worth(a) ? b : a));
  const ste = allRuns.filter((r) => r.net === first.net && /^STE/.test(r.series.label));
  const second = ste.find((r) => r.run.state === "done" && r.run.seed === first.run.seed) || ste.find((r) => r.run.state === "done") || null;
  return [first.id, second ? second.id : ""];
}

async function inflate(entry) {
  const { history } = entry.run;
  const packed = Uint8Array.from(atob(history.bytes), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const cells = new Uint8Array(await new Response(stream).arrayBuffer());
  const columns = history.epoch.length;
  const parts = {};
  let from = 0;
  for (const part of history.parts) {
    parts[part.name] = { ...part, columns, cells: cells.subarray(from, from + part.rows.length * columns) };
    from += part.rows.length * columns;
  }
  anatomy.inflated.set(entry.id, parts);
}

async function drawAnatomy() {
  const turn = ++anatomy.turn;
  const chosen = anatomy.runs.map((id) => allRuns.find((r) => r.id === id)).filter(Boolean);
  const missing = chosen.filter((entry) => !anatomy.inflated.has(entry.id)); // none when printing, which does not wait
  if (missing.length) await Promise.all(missing.map(inflate));
  if (turn !== anatomy.turn) return; // a newer choice is being drawn
  const parts = chosen.map((entry) => anatomy.inflated.get(entry.id));
  const panels = document.getElementById("panels");
  panels.className = chosen.length > 1 ? "panels two" : "panels";
  const slots = chosen.map(() => el("article", {}));
  panels.replaceChildren(...slots);
  const highest = Math.max(...chosen.flatMap(({ net, run }) => [net.chance, ...run.accuracy.test.current, ...run.accuracy.test.binary]));
  const top = Math.min(100, 10 * Math.ceil((highest + 2) / 10)); // of the accuracy, the same for both
  chosen.forEach((entry, i) => panel(slots[i], entry, parts[i], parts, top));
  root.dataset.figures = document.querySelectorAll(".plot > svg").length;
  root.dataset.ready = "yes";
}

function panel(slot, entry, parts, all, top) {
  const { net, series, run } = entry;
  const epochs = `${run.epoch.at(-1)} of ${series.epochs} epochs`;
  const state = `seed ${run.seed}` + { done: "", open: `, unfinished: ${epochs}`, broken: `, broke down after ${epochs}: ${run.why}` }[run.state];
  slot.append(el("header", {}, el("h3", {}, series.label), el("p", { class: "note" }, `${net.title}, ${state}`)));
  const wide = Math.max(slot.clientWidth, 240);
  const frame = { wide, left: wide < 420 ? 92 : 150, epochs: series.epochs, top, lines: [] };
  frame.right = frame.wide - 10;
  frame.x = (e) => frame.left + ((frame.right - frame.left) * e) / frame.epochs;
  slot.append(accuracyFigure(entry, frame));
  for (const kind of ["frozen", "flow", "flips"]) {
    const name = kind === "flow" ? anatomy.flow : kind;
    slot.append(heatFigure(MAPS[kind], parts[name], name, entry, frame, all.map((p) => p[name]).filter(Boolean)));
  }
}

function accuracyFigure(entry, frame) {
  const { run, series, net } = entry;
  const height = 170, bottom = height - 24, y = (v) => bottom - ((bottom - 8) * v) / frame.top;
  const path = (view) => run.at.test.map((e, i) => `${i ? "L" : "M"}${frame.x(e).toFixed(1)} ${y(run.accuracy.test[view][i]).toFixed(1)}`).join("");
  const stroke = { fill: "none", stroke: color("s" + series.slot), "stroke-width": series.epochs > 80 ? 1.4 : 1.9, "stroke-linejoin": "round" };
  const end = (view) => fixed(run.accuracy.test[view].at(-1));
  const picture = svg("svg", {
    viewBox: `0 0 ${frame.wide} ${height}`, height, role: "img",
    "aria-label": `Test accuracy of ${series.label}, seed ${run.seed}: ends at ${end("current")} % in the current view and ${end("binary")} % in the binary view after ${run.epoch.at(-1)} epochs${STATES[run.state]}.`,
  });
  for (const v of ticks(0, frame.top, 4)) picture.append(line(frame.left, y(v), frame.right, y(v), color("line")), label(frame.left - 8, y(v) + 4, v, { "text-anchor": "end", "font-size": 11 }));
  picture.append(line(frame.left, y(net.chance), frame.right, y(net.chance), color("soft"), { "stroke-dasharray": "1 4" }),
    svg("path", { d: path("current"), ...stroke }), svg("path", { d: path("binary"), ...stroke, "stroke-dasharray": "5 3.5" }), epochAxis(frame, bottom));
  if (run.state !== "done") picture.append(marker(series.slot, series.slot, frame.x(run.at.test.at(-1)), y(run.accuracy.test.binary.at(-1)), run.state, 0.9));
  const plot = el("div", { class: "plot" }, picture);
  listen(plot, picture, frame, 8, bottom, (e) => {
    const i = run.at.test.indexOf(e);
    return i < 0 ? null : [`test accuracy: current view ${fixed(run.accuracy.test.current[i])} %, binary view ${fixed(run.accuracy.test.binary[i])} %`];
  });
  return el("figure", {}, el("h4", {}, "Test accuracy, %"), plot, el("figcaption", {}, "Solid: as trained. Dashed: everything forced to ±1. Dotted: chance."));
}

function epochAxis(frame, bottom) {
  const marks = ticks(0, frame.epochs, frame.wide < 420 ? 4 : 8).filter(Number.isInteger);
  return svg("g", {}, label(frame.left - 7, bottom + 16, "epoch", { "text-anchor": "end", "font-size": 11 }),
    marks.map((e) => label(frame.x(e), bottom + 16, e, { "text-anchor": "middle", "font-size": 11 })));
}

function heatFigure(map, part, name, entry, frame, shared) {
  const heading = el("h4", {}, map.title);
  if (!part) return el("figure", {}, heading, el("p", { class: "empty" }, map.none));
  const { run, series } = entry;
  const rows = part.rows.length;
  const each = Math.max(4, Math.min(18, Math.round(450 / rows)));
  const bottom = rows * each + 2, height = bottom + 22;
  const scale = sharedScale(part, shared);
  const told = map.ramp === "flow" ? FLOWS.find(([value]) => value === name)[2] : map.told;
  const picture = svg("svg", { viewBox: `0 0 ${frame.wide} ${height}`, height, role: "img", tabindex: 0, "aria-label": `${map.title} of ${series.label}, seed ${run.seed}: ${rows} rows over ${run.epoch.at(-1)} epochs. ${told} Values are in the table below.` });
  const pitch = Math.ceil(11.5 / each);
  part.rows.forEach((row, i) => {
    if (i % pitch === 0) picture.append(label(frame.left - 7, (i + 0.5) * each + 4, shorten(row, frame.left), { "text-anchor": "end", "font-size": Math.min(11, each + 1 < 9 ? 9.5 : 11) }));
  });
  picture.append(svg("rect", { x: frame.left, y: 0, width: frame.right - frame.left, height: rows * each, fill: "none", stroke: color("line") }), epochAxis(frame, bottom));
  picture.append(paint(map, part, run.history, frame, each, scale));
  const plot = el("div", { class: "plot" }, picture);
  listen(plot, picture, frame, 0, rows * each, (e, y) => {
    const column = columnOf(run.history, e);
    if (column < 0) return null;
    const i = Math.max(0, Math.min(rows - 1, Math.floor(y / each)));
    return [el("span", {}, part.rows[i]), el("br"), told === map.told ? "" : told + ": ", valueText(map, part, part.cells[i * part.columns + column])];
  }, rows, each);
  const caption = map.ramp === "flow" ? `${told[0].toUpperCase()}${told.slice(1)}, ${map.told[0].toLowerCase()}${map.told.slice(1)}` : map.told;
  const every = run.history.every > 1 ? ` Every ${run.history.every}th epoch is shown.` : "";
  return el("figure", {}, heading, plot, key(map, part, scale, frame), el("figcaption", {}, caption + every),
    alternative(`${map.title} as a table`, () => heatTable(map, part, run, told)));
}

/* One scale for all runs shown side by side, so that their colours can be compared. Where the second run's norms go far
   beyond the first's, as STE's do when they explode, the scale stops there and says so. */
function sharedScale(part, shared) {
  const lowest = Math.min(...shared.map((p) => p.low)), highest = Math.max(...shared.map((p) => p.high));
  const log = part.scale === "log";
  const low = log ? Math.max(lowest, shared[0].low - 2) : lowest, high = log ? Math.min(highest, shared[0].high + 3) : highest;
  const bend = part.scale === "linear" ? 2 : 1; // rates are small nearly everywhere: a square root spreads them
  const of = (byte) => Math.max(0, Math.min(1, (raw(part, byte) - low) / (high - low || 1))) ** (1 / bend);
  const sign = (share) => (share === 0 && low > lowest ? "≤ " : share === 1 && high < highest ? "≥ " : "");
  return { of, sign, at: (share) => low + (high - low) * share ** bend };
}
const raw = (part, byte) => (part.scale === "log" ? part.low + ((part.high - part.low) * (byte - 1)) / (TOP - 1) : (part.high * byte) / TOP);
const shorten = (name, room) => {
  const text = name.replace(/\.weight$/, "").replace(/^layer/, room < 120 ? "" : "layer").replace("downsample", "down");
  const most = Math.floor(room / 6.2);
  return text.length > most ? "…" + text.slice(1 - most) : text;
};
function valueText(map, part, byte) {
  if (byte === MISSING) return "no finite number recorded";
  if (byte === 0) return map.zero === "open" ? "open, nothing frozen" : map.zero;
  if (part.scale === "log") return "about " + power(10 ** raw(part, byte), 2);
  if (map.ramp === "frozen" && byte === TOP) return "frozen, all of it";
  const percent = 100 * raw(part, byte);
  return `${fixed(percent, percent < 10 ? 1 : 0)} % ${map.unit}`;
}
/* The column that holds an epoch, or the next later one if only some are kept. */
function columnOf(history, epoch) {
  const i = history.epoch.findIndex((e) => e >= epoch);
  return i >= 0 && history.epoch[i] - epoch < history.every ? i : -1;
}

/* A number with so many digits; very large and very small ones with a power of ten. */
function power(value, digits) {
  if (value >= 1e-4 && value < 1e5) return String(Number(value.toPrecision(digits)));
  const [digit, exponent] = value.toExponential(digits - 1).split("e");
  const raised = String(Number(exponent)).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
  return (Number(digit) === 1 ? "" : digit + "·") + "10" + raised;
}

function ramp(name) {
  const stops = color(name).split(/\s+/).map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return (share) => {
    const at = share * (stops.length - 1), i = Math.min(Math.floor(at), stops.length - 2);
    return `rgb(${stops[i].map((v, c) => Math.round(v + (stops[i + 1][c] - v) * (at - i))).join(",")})`;
  };
}

function hatch(context, density) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6 * density;
  const pen = tile.getContext("2d");
  pen.fillStyle = color("faint");
  pen.fillRect(0, 0, tile.width, tile.height);
  pen.strokeStyle = color("hatch");
  pen.lineWidth = 1.1 * density;
  for (const shift of [-6, 0, 6]) { pen.moveTo((shift - 1) * density, 7 * density); pen.lineTo((shift + 7) * density, -density); }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

/* The cells as one image inside the figure, so that it scales with it. */
function paint(map, part, history, frame, each, scale) {
  const density = Math.max(2, Math.ceil(window.devicePixelRatio || 1));
  const wide = frame.right - frame.left, rows = part.rows.length;
  const canvas = el("canvas", { width: Math.round(wide * density), height: rows * each * density });
  const pen = canvas.getContext("2d");
  const of = ramp(map.ramp);
  const paints = Array.from({ length: 256 }, (_, byte) => (byte === 0 && !map.hatch ? of(0) : of(scale.of(byte))));
  if (map.hatch) paints[0] = hatch(pen, density);
  const gap = each >= 9 ? density : 0;
  const edge = (e) => Math.round(((canvas.width * Math.max(0, e)) / frame.epochs));
  for (let c = 0; c < part.columns; c++) {
    const from = edge(history.epoch[c] - history.every), to = edge(history.epoch[c]);
    for (let r = 0; r < rows; r++) {
      const byte = part.cells[r * part.columns + c];
      if (byte === MISSING) continue;
      pen.fillStyle = paints[byte];
      pen.fillRect(from, r * each * density, Math.max(1, to - from), each * density - gap);
    }
  }
  return svg("image", { href: canvas.toDataURL(), x: frame.left, y: 0, width: wide, height: rows * each, preserveAspectRatio: "none", "aria-hidden": "true" });
}

let gradients = 0;
function key(map, part, scale, frame) {
  const id = `ramp${gradients++}`, of = ramp(map.ramp), start = frame.left, wide = 150;
  const percent = (v) => `${fixed(100 * v, v && v < 0.1 ? 1 : 0)} %`;
  const text = (share) => scale.sign(share) + (part.scale === "log" ? power(10 ** scale.at(share), 1) : percent(scale.at(share)));
  const small = (share, anchor) => label(start + share * wide, 24, text(share), { "font-size": 11, "text-anchor": anchor });
  const items = [
    svg("defs", {}, svg("linearGradient", { id }, [0, 0.25, 0.5, 0.75, 1].map((s) => svg("stop", { offset: s, "stop-color": of(s) })))),
    svg("rect", { x: start, y: 1, width: wide, height: 10, rx: 2, fill: `url(#${id})`, stroke: color("line") }),
    small(0, "start"), small(0.5, "middle"), small(1, "end"),
  ];
  if (map.hatch) {
    const x = start + wide + 18;
    items.push(svg("rect", { x, y: 1, width: 24, height: 10, rx: 2, fill: color("faint"), stroke: color("hatch") }),
      [2, 8, 14].map((at) => line(x + at, 11, x + at + 8, 1, color("hatch"), { "stroke-width": 1.4 })), label(x, 24, "zero", { "font-size": 11 }));
  }
  return svg("svg", { class: "scale", viewBox: `0 0 ${frame.wide} 30`, height: 30, width: frame.wide, "aria-hidden": "true" }, items);
}

/* A crosshair that all figures of a panel share, and what lies under it. */
function listen(plot, picture, frame, top, bottom, read, rows = 1, each = bottom) {
  const mark = el("div", { "aria-hidden": "true" });
  Object.assign(mark.style, { position: "absolute", top: top + "px", height: bottom - top + "px", borderLeft: "1.5px solid " + color("ink"), opacity: "0.65", display: "none", pointerEvents: "none" });
  plot.append(mark);
  frame.lines.push(mark);
  let at = { e: 1, row: 0 };
  const show = (e, y, pointer) => {
    const told = read(e, y);
    if (!told) return leave();
    for (const other of frame.lines) { other.style.display = "block"; other.style.left = frame.x(e - 0.5) + "px"; }
    const box = picture.getBoundingClientRect();
    const place = pointer || { x: box.left + window.scrollX + frame.x(e - 0.5), y: box.top + window.scrollY + y };
    const content = el("div", {}, told);
    showTip(place, el("b", {}, `epoch ${e}`), content);
    document.getElementById("anatomy-live").textContent = `Epoch ${e}. ${content.textContent}`;
  };
  const leave = () => { hideTip(); for (const other of frame.lines) other.style.display = "none"; };
  const move = (event) => {
    const box = picture.getBoundingClientRect();
    const e = Math.ceil(((event.clientX - box.left - frame.left) / (frame.right - frame.left)) * frame.epochs);
    if (e < 1 || e > frame.epochs) return leave();
    at = { e, row: Math.floor((event.clientY - box.top) / each) };
    show(e, event.clientY - box.top, { x: event.pageX, y: event.pageY });
  };
  for (const kind of ["pointermove", "pointerdown"]) picture.addEventListener(kind, move);
  for (const kind of ["pointerleave", "blur"]) picture.addEventListener(kind, leave);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (event.key === "Escape") leave();
    if (!step) return;
    event.preventDefault();
    at = { e: Math.max(1, Math.min(frame.epochs, at.e + step[0])), row: Math.max(0, Math.min(rows - 1, at.row + step[1])) };
    show(at.e, (at.row + 0.5) * each, null);
  });
}

function heatTable(map, part, run, told) {
  const epochs = run.history.epoch, pick = epochs.length <= 14 ? epochs.map((_, i) => i) : Array.from({ length: 12 }, (_, i) => Math.round((i * (epochs.length - 1)) / 11));
  const rows = part.rows.map((name, r) => [name, ...pick.map((c) => valueText(map, part, part.cells[r * part.columns + c]))]);
  return dataTable(`${map.title}. ${told}`, [map.rows, ...pick.map((c) => `epoch ${epochs[c]}`)], rows);
}
