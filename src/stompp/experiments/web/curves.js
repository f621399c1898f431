// Learning curves of one net: a line per recipe, solid for the current view and dashed for the binary one.

const curves = { net: 0, split: "test", view: "both", seeds: "mean", choice: "usual", listed: [], off: new Set(), paints: new Map() };
const USUAL = ["float (ReLU)", "float (clip)", "STE (identity)", "STE (clip)", "STE (ApproxSign)", "StoMPP"];
const MOST_AT_FIRST = 6, MOST_LISTED = 12, MOST_TOLD = 14, MOST_NAMED = 20;
const curvePlot = document.getElementById("curve-plot");
const curveLegend = document.getElementById("curve-legend");
let shown = []; // the series as drawn
let curveAt = null; // the epoch under the crosshair

function startCurves() {
  const titles = DATA.nets.map((net, i) => [String(i), net.title]).filter(([i]) => drawable(DATA.nets[i]).length);
  DATA.nets.forEach((net, i) => { if (drawable(net).length > drawable(DATA.nets[curves.net]).length) curves.net = i; });
  const set = (name) => (value) => { curves[name] = value; drawCurves(); };
  document.getElementById("curve-controls").append(
    dropdown("Net", "curve-net", titles, String(curves.net), (v) => { curves.net = Number(v); choose(curves.choice === "own" ? "usual" : curves.choice); drawCurves(); }),
    dropdown("Recipes", "curve-show", [], "", (v) => { choose(v); drawCurves(); }),
    choice("Images", [["test", "test"], ["train", "train"]], "test", set("split")),
    choice("View", [["both", "both"], ["current", "current"], ["binary", "binary"]], "both", set("view")),
    choice("Seeds", [["mean", "mean ± sd"], ["each", "each"]], "mean", set("seeds")));
  document.getElementById("curves-figure").append(alternative("These curves as a table", curveTable),
    el("p", { class: "alt" }, el("button", { type: "button", onclick: saveCurves }, "Save as SVG")));
  choose("usual");
  startMore();
  figures.push(drawCurves);
  for (const link of document.querySelectorAll("a[data-show]")) link.addEventListener("click", () => showExperiment(link.dataset.show));
}

const drawable = (net) => net.series.filter((s) => s.runs.length);
const seriesOf = () => drawable(DATA.nets[curves.net]);
const ofExperiment = (name, net = DATA.nets[curves.net]) => drawable(net).filter((s) => s.in.includes(name));
const views = () => (curves.view === "both" ? ["current", "binary"] : [curves.view]);

/* What can be drawn together on this net: the usual rules, the recipes of one of the paper's experiments, everything. */
function choices() {
  const all = seriesOf();
  const experiments = Object.entries(DATA.experiments).filter(([name]) => ofExperiment(name).length > 1);
  return [
    ["usual", "the usual rules"],
    ...experiments.map(([name, source]) => [`of ${name}`, `${name} (${source}): ${ofExperiment(name).length}`]),
    ["all", `everything: ${all.length}`], ["none", "nothing"], ["own", "own choice"],
  ];
}

/* List a choice's recipes in the legend and draw them. */
function choose(value) {
  const all = seriesOf();
  curves.choice = choices().some(([known]) => known === value) ? value : "usual";
  const usual = [...all].sort((a, b) => rank(a) - rank(b)).slice(0, MOST_AT_FIRST);
  const picked = {
    usual: all.filter((s) => usual.includes(s)), all, none: [], own: all.filter((s) => curves.listed.includes(s.id)),
  }[curves.choice] || ofExperiment(curves.choice.slice(3));
  const listed = all.length <= MOST_LISTED ? all : picked;
  curves.listed = listed.map((s) => s.id);
  curves.off = new Set(listed.filter((s) => !picked.includes(s)).map((s) => s.id));
  curves.paints.clear();
  for (const s of [...picked, ...listed]) paintOf(s);
  setOptions(document.getElementById("curve-show"), choices(), curves.choice);
}

/* Rules that everyone compares come first, then what differs in rule alone, then what differs in a setting. */
const rank = (s) => (USUAL.includes(s.label) ? USUAL.indexOf(s.label) : (s.label.includes(" · ") ? 200 : 100));

/* A recipe's colour and shape: its own colour if it is free among those listed, else one of the least used. Where there
   are more recipes than colours, shapes differ. */
function paintOf(s) {
  if (!curves.paints.has(s.id)) {
    const taken = [...curves.paints.values()].map((p) => p.slot);
    const times = (slot) => taken.filter((other) => other === slot).length;
    const slot = [s.slot, 0, 1, 2, 3, 4, 5, 6, 7].reduce((best, other) => (times(other) < times(best) ? other : best));
    curves.paints.set(s.id, { slot, shape: (slot + 3 * times(slot)) % 8 });
  }
  return curves.paints.get(s.id);
}

/* Draw an experiment's recipes, on the net that has most of them. */
function showExperiment(name) {
  const counts = DATA.nets.map((net) => ofExperiment(name, net).length);
  if (!Math.max(...counts)) return;
  curves.net = counts[curves.net] > 1 ? curves.net : counts.indexOf(Math.max(...counts));
  document.getElementById("curve-net").value = String(curves.net);
  choose(`of ${name}`);
  drawCurves();
}

/* Lines of a series in one view: mean over the finished seeds, with sd if there are two; others by themselves. */
function linesOf(series, view) {
  const done = series.runs.filter((run) => run.state === "done");
  const single = (run) => ({
    run, seeds: [run.seed], thin: series.runs.length > 1, state: run.state,
    points: run.at[curves.split].map((e, i) => ({ e, y: run.accuracy[curves.split][view][i], sd: null })),
  });
  if (curves.seeds === "each" || !done.length) return series.runs.map(single);
  const values = new Map();
  for (const run of done) {
    run.at[curves.split].forEach((e, i) => {
      if (!values.has(e)) values.set(e, []);
      values.get(e).push(run.accuracy[curves.split][view][i]);
    });
  }
  const points = [...values].filter(([, ys]) => ys.length === done.length).sort((a, b) => a[0] - b[0]).map(([e, ys]) => {
    const y = ys.reduce((a, b) => a + b) / ys.length;
    const sd = ys.length > 1 ? Math.sqrt(ys.reduce((a, b) => a + (b - y) ** 2, 0) / (ys.length - 1)) : null;
    return { e, y, sd };
  });
  const others = series.runs.filter((run) => run.state !== "done");
  return [{ seeds: done.map((r) => r.seed), thin: false, state: "done", points }, ...others.map((r) => ({ ...single(r), thin: true }))];
}

function drawCurves() {
  const net = DATA.nets[curves.net];
  const all = seriesOf();
  shown = all.filter((s) => curves.listed.includes(s.id) && !curves.off.has(s.id)).map((s) => ({
    ...s, ...paintOf(s),
    lines: views().flatMap((view) => linesOf(s, view).map((l) => ({ ...l, view }))),
  }));
  const width = Math.max(curvePlot.clientWidth, 240);
  const phone = width < 640;
  const height = phone ? 300 : 430;
  const box = { left: 40, right: width - (phone ? 12 : 170), top: 34, bottom: height - 40 };
  const last = Math.max(1, ...(shown.length ? shown : all).map((s) => s.epochs));
  const highest = Math.max(net.chance, ...shown.flatMap((s) => s.lines.flatMap((l) => l.points.map((p) => p.y + (p.sd || 0)))));
  const top = Math.min(100, Math.ceil((highest + 2) / 10) * 10);
  const x = (e) => box.left + ((box.right - box.left) * e) / last;
  const y = (v) => box.bottom - ((box.bottom - box.top) * Math.min(v, top)) / top;
  drawLegend(all);
  drawLost(net);
  const described = `Accuracy on ${curves.split} images by epoch for ${net.title}. ` + shown.map(describe).join(" ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0, "aria-label": described });
  for (const v of ticks(0, top, 5)) {
    picture.append(line(box.left, y(v), box.right, y(v), color("line")), label(box.left - 8, y(v) + 4, v, { "text-anchor": "end" }));
  }
  for (const e of ticks(0, last, phone ? 5 : 10).filter(Number.isInteger)) {
    picture.append(label(x(e), box.bottom + 19, e, { "text-anchor": "middle" }));
  }
  picture.append(
    label(box.left - 30, 14, `${curves.split} accuracy, %`), label(box.right, height - 4, "epoch", { "text-anchor": "end" }), styleKey(box.right),
    line(box.left, y(net.chance), box.right, y(net.chance), color("soft"), { "stroke-dasharray": "1 4", "stroke-width": 1.5 }),
    label(box.right - 4, y(net.chance) - 5, "chance", { "text-anchor": "end", "font-size": 11 }));
  for (const s of shown) picture.append(bands(s, x, y));
  for (const s of shown) for (const l of s.lines) picture.append(curve(s, l, x, y));
  for (const state of ["done", "open", "broken"]) picture.append(...ends(state, x, y));
  if (!phone) picture.append(endLabels(x, y, box, last));
  const cross = svg("g", {});
  picture.append(cross);
  follow(picture, cross, x, y, box, last);
  curvePlot.replaceChildren(picture);
}

/* Runs, among those chosen, that broke down before there was anything to draw. */
function drawLost(net) {
  const chosen = {
    usual: (s) => rank(s) < 200, all: () => true, none: () => false, own: (s) => curves.listed.includes(s.id),
  }[curves.choice] || ((s) => s.in.includes(curves.choice.slice(3)));
  const lost = net.series.filter((s) => s.lost.length && chosen(s)).map((s) => `${s.label} (seed ${s.lost.join(", ")})`);
  document.getElementById("curve-lost").textContent = lost.length ? `Broke down in the first epoch, so without a curve: ${lost.join("; ")}.` : "";
}

/* What solid and dashed mean, as part of the picture. */
function styleKey(right) {
  const wide = { current: 72, binary: 64 };
  let x = right;
  return svg("g", {}, views().reverse().map((view) => {
    x -= wide[view] + 8;
    return [line(x, 10, x + 24, 10, color("ink"), { "stroke-width": 2, "stroke-dasharray": view === "binary" ? "6 4" : null }), label(x + 29, 14, view)];
  }));
}

function describe(s) {
  const end = (view) => s.lines.filter((l) => l.view === view && l.points.length).map((l) => fixed(l.points.at(-1).y)).join(", ");
  const some = (state, told) => (s.runs.some((r) => r.state === state) ? `, some runs ${told}` : "");
  return `${s.label}: ends at ${views().map((v) => `${end(v)} % in the ${v} view`).join(" and ")}${some("open", "unfinished")}${some("broken", "broke down")}.`;
}

const trace = (points, x, y) => points.map((p, i) => `${i ? "L" : "M"}${x(p.e).toFixed(1)} ${y(p.y).toFixed(1)}`).join("");

function bands(s, x, y) {
  const group = svg("g", {});
  const drawn = new Set(); // where both views are the same, one band is enough
  for (const l of s.lines.filter((l) => l.points.length > 1 && l.points[0].sd !== null)) {
    const upper = l.points.map((p) => ({ e: p.e, y: p.y + p.sd }));
    const lower = l.points.map((p) => ({ e: p.e, y: Math.max(0, p.y - p.sd) })).reverse();
    const d = trace([...upper, ...lower], x, y) + "Z";
    if (!drawn.has(d)) group.append(svg("path", { d, fill: color("s" + s.slot), "fill-opacity": l.view === "binary" ? 0.1 : 0.16 }));
    drawn.add(d);
  }
  return group;
}

function curve(s, l, x, y) {
  if (!l.points.length) return svg("g", {});
  const stroke = {
    fill: "none", stroke: color("s" + s.slot), "stroke-width": (l.thin ? 1.2 : 2.2) * (l.points.length > 40 ? 0.8 : 1), "stroke-linejoin": "round",
    "stroke-dasharray": l.view === "binary" ? "6 4" : null, "stroke-opacity": l.thin ? 0.8 : 1,
  };
  return svg("g", { class: "series" }, svg("path", { d: trace(l.points, x, y), ...stroke }));
}

/* Where lines end, those that end early on top. */
function ends(state, x, y) {
  return shown.flatMap((s) => s.lines.filter((l) => l.state === state && l.points.length).map((l) => {
    const { e, y: value } = l.points.at(-1);
    return marker(s.slot, s.shape, x(e), y(value), state, l.thin ? 0.7 : 0.95);
  }));
}

/* Names at the ends of the lines, pushed apart so that none covers another. */
function endLabels(x, y, box, last) {
  const ends = shown.map((s) => {
    const l = s.lines.filter((l) => l.points.length && !l.thin).at(-1) || s.lines.filter((l) => l.points.length).at(-1);
    return l ? { s, y: y(l.points.at(-1).y), e: l.points.at(-1).e } : null;
  }).filter((end) => end && end.e > last * 0.9).sort((a, b) => a.y - b.y);
  if (ends.length > MOST_NAMED) return svg("g", {}); // the legend has them
  const gap = 17, same = commonStart(ends.map(({ s }) => s.label)).length;
  ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + gap); });
  for (let i = ends.length - 1, limit = box.bottom + 6; i >= 0; i--, limit -= gap) ends[i].y = Math.min(ends[i].y, limit);
  return svg("g", {}, ends.map(({ s, y: at }) => {
    const own = s.label.slice(same), short = own.length > 24 ? own.slice(0, 23) + "…" : own;
    return label(box.right + 13, at + 4, short, { fill: readable("s" + s.slot), "font-size": 12.5, "font-weight": 600 });
  }));
}

const epochText = (e) => String(+e.toFixed(2));

/* What all labels begin with, up to a setting of their own. */
function commonStart(labels) {
  if (labels.length < 2) return "";
  let same = labels[0];
  for (const text of labels) while (!text.startsWith(same)) same = same.slice(0, -1);
  return same.slice(0, same.lastIndexOf(" · ") + 1 ? same.lastIndexOf(" · ") + 3 : 0);
}

/* A colour, nearer to that of text, for text. */
function readable(name) {
  const [own, ink] = [color(name), color("ink")].map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return `rgb(${own.map((v, i) => Math.round(0.5 * v + 0.5 * ink[i])).join(",")})`;
}

function follow(picture, cross, x, y, box, last) {
  const epochs = [...new Set(shown.flatMap((s) => s.lines.flatMap((l) => l.points.map((p) => p.e))))].sort((a, b) => a - b);
  if (!epochs.length) return;
  const show = (e) => {
    curveAt = e;
    cross.replaceChildren(line(x(e), box.top, x(e), box.bottom, color("soft"), { "stroke-width": 1 }));
    const rows = shown.map((s) => {
      const cell = (view) => s.lines.filter((l) => l.view === view).map((l) => l.points.find((p) => p.e === e)).filter(Boolean)
        .map((p) => fixed(p.y) + (p.sd === null ? "" : ` ± ${fixed(p.sd)}`)).join(", ");
      const dots = s.lines.map((l) => l.points.find((p) => p.e === e)).filter(Boolean);
      dots.forEach((p) => cross.append(svg("circle", { cx: x(e), cy: y(p.y), r: 3.5, fill: color("s" + s.slot), stroke: color("card") })));
      const sign = svg("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, marker(s.slot, s.shape, 0, 0, "done"));
      return dots.length ? { y: Math.max(...dots.map((p) => p.y)), cells: [s.label, ...views().map(cell)], sign } : null;
    }).filter(Boolean).sort((a, b) => b.y - a.y);
    const table = el("table", {},
      el("thead", {}, el("tr", {}, el("th", {}), views().map((v) => el("th", { scope: "col" }, v)))),
      el("tbody", {}, rows.slice(0, MOST_TOLD).map((row) => el("tr", {}, el("td", { class: "label" }, row.sign, " ", row.cells[0]), row.cells.slice(1).map((c) => el("td", {}, c))))));
    const at = picture.getBoundingClientRect();
    showTip({ x: at.left + window.scrollX + x(e), y: at.top + window.scrollY + (isPhone() ? box.bottom : box.top) }, el("b", {}, `epoch ${epochText(e)}`), table, rows.length > MOST_TOLD ? `and ${rows.length - MOST_TOLD} more, in the table below` : "");
    document.getElementById("curve-live").textContent = `Epoch ${epochText(e)}. ` + rows.map((r) => r.cells.join(" ")).join("; ");
  };
  const leave = () => { hideTip(); cross.replaceChildren(); curveAt = null; };
  const nearest = (event) => {
    const e = ((event.clientX - picture.getBoundingClientRect().left - box.left) / (box.right - box.left)) * last;
    return epochs.reduce((a, b) => (Math.abs(b - e) < Math.abs(a - e) ? b : a));
  };
  picture.addEventListener("pointermove", (event) => show(nearest(event)));
  picture.addEventListener("pointerdown", (event) => show(nearest(event)));
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("blur", leave);
  picture.addEventListener("keydown", (event) => {
    const i = curveAt === null ? -1 : epochs.indexOf(curveAt);
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: epochs.length - 1 }[event.key];
    if (event.key === "Escape") leave();
    if (to === undefined) return;
    event.preventDefault();
    show(epochs[Math.max(0, Math.min(to, epochs.length - 1))]);
  });
}

function pill(s, on, toggle) {
  const { slot, shape } = curves.paints.get(s.id) || { slot: s.slot, shape: s.slot };
  const sample = svg("svg", { viewBox: "0 -7 34 14", "aria-hidden": "true" }, line(0, 0, 34, 0, color("s" + slot), { "stroke-width": 2.4 }), marker(slot, shape, 17, 0, on ? "done" : "open", 0.9));
  const count = (state) => s.runs.filter((r) => r.state === state).length;
  const broken = count("broken") + s.lost.length;
  const n = [count("done") ? `n = ${count("done")}` : "", count("open") ? `${count("open")} unfinished` : "", broken ? `${broken} diverged` : ""];
  return el("button", { type: "button", "aria-pressed": on, title: s.recipe, onclick: toggle }, sample, el("span", {}, s.label, " ", el("small", {}, n.filter(Boolean).join(", "))));
}

function drawLegend(all) {
  const listed = all.filter((s) => curves.listed.includes(s.id));
  curveLegend.replaceChildren(...listed.map((s, place) => {
    const on = !curves.off.has(s.id);
    return pill(s, on, () => {
      if (on) curves.off.add(s.id); else curves.off.delete(s.id);
      own();
      curveLegend.children[place].focus();
    });
  }));
  drawMore(all.filter((s) => !curves.listed.includes(s.id)));
}

function own() {
  curves.choice = "own";
  document.getElementById("curve-show").value = "own";
  drawCurves();
}

/* The net's other recipes, behind a disclosure with a field to find them by. */
let more = null;
function startMore() {
  const field = el("input", { type: "search", id: "more-find", placeholder: "lr 0.01, reverse, …", autocomplete: "off", spellcheck: "false", oninput: () => setFilter(field.value) });
  more = {
    list: el("div", { class: "legend", role: "group", "aria-label": "Other recipes: press to draw" }), field, summary: el("summary", {}),
    every: el("button", { type: "button", onclick: () => { curves.listed.push(...more.found.map((s) => s.id)); own(); } }, "Draw them all"), found: [],
  };
  more.details = el("details", { class: "alt more" }, more.summary, el("div", { class: "find" }, el("label", { for: "more-find" }, "Filter"), field, more.every), more.list);
  document.getElementById("curve-more").append(more.details);
  filter.changed.push(() => { field.value = filter.text; drawMore(seriesOf().filter((s) => !curves.listed.includes(s.id))); });
}

function drawMore(others) {
  if (!more) return;
  const title = DATA.nets[curves.net].title;
  more.found = others.filter((s) => matches(`${title} ${s.label} ${s.recipe}`));
  more.details.hidden = !others.length;
  more.summary.textContent = `${others.length} more on this net` + (filter.words.length ? `, ${more.found.length} of them found` : "");
  more.every.disabled = !more.found.length;
  more.list.replaceChildren(...more.found.map((s, place) => pill(s, false, () => {
    curves.listed.push(s.id);
    paintOf(s);
    own();
    (more.list.children[place] || more.list.lastChild || more.field).focus();
  })));
}

function curveTable() {
  const columns = shown.flatMap((s) => s.lines.map((l) => ({ s, l })));
  const epochs = [...new Set(columns.flatMap(({ l }) => l.points.map((p) => p.e)))].sort((a, b) => a - b);
  const head = ["epoch", ...columns.map(({ s, l }) => `${s.label}, ${l.view}, ${l.seeds.length > 1 ? `mean of ${l.seeds.length}` : `seed ${l.seeds[0]}`}${{ open: " (unfinished)", broken: " (broke down)" }[l.state] || ""}`)];
  const rows = epochs.map((e) => [epochText(e), ...columns.map(({ l }) => {
    const p = l.points.find((q) => q.e === e);
    return p ? fixed(p.y, 2) + (p.sd === null ? "" : ` ± ${fixed(p.sd, 2)}`) : "–";
  })]);
  return dataTable(`Accuracy on ${curves.split} images in percent, ${DATA.nets[curves.net].title}`, head, rows);
}

function saveCurves() {
  const copy = curvePlot.querySelector("svg").cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", copy.viewBox.baseVal.width);
  const link = el("a", { href: URL.createObjectURL(new Blob([copy.outerHTML], { type: "image/svg+xml" })), download: "curves.svg" });
  link.click();
  URL.revokeObjectURL(link.href);
}
