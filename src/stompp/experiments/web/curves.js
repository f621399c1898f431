// Learning curves of one net: a line per recipe, solid for the current view and dashed for the binary one.

const curves = { net: 0, split: "test", view: "both", seeds: "mean", off: new Set() };
const MOST_AT_FIRST = 8;
const curvePlot = document.getElementById("curve-plot");
const curveLegend = document.getElementById("curve-legend");
let shown = []; // the series as drawn
let curveAt = null; // the epoch under the crosshair

function startCurves() {
  const titles = DATA.nets.map((net, i) => [String(i), net.title]);
  const most = (net) => net.series.filter((s) => s.runs.length).length;
  DATA.nets.forEach((net, i) => { if (most(net) > most(DATA.nets[curves.net])) curves.net = i; });
  const set = (name) => (value) => { curves[name] = value; drawCurves(); };
  document.getElementById("curve-controls").append(
    dropdown("Net", "curve-net", titles, String(curves.net), (v) => { curves.net = Number(v); resetLegend(); drawCurves(); }),
    choice("Images", [["test", "test"], ["train", "train"]], "test", set("split")),
    choice("View", [["both", "both"], ["current", "current"], ["binary", "binary"]], "both", set("view")),
    choice("Seeds", [["mean", "mean ± sd"], ["each", "each"]], "mean", set("seeds")),
    el("button", { type: "button", onclick: saveCurves }, "Save as SVG"));
  document.getElementById("curves-figure").append(alternative("These curves as a table", curveTable));
  resetLegend();
  figures.push(drawCurves);
}

const seriesOf = () => DATA.nets[curves.net].series.filter((s) => s.runs.length);
const views = () => (curves.view === "both" ? ["current", "binary"] : [curves.view]);

/* Colours repeat when there are more series than colours; shapes then differ. */
const shapeOf = (s, all) => (s.slot + 3 * all.filter((o) => o.slot === s.slot).indexOf(s)) % 8;

function resetLegend() {
  curves.off = new Set(seriesOf().slice(MOST_AT_FIRST).map((s) => s.recipe));
}

/* Lines of a series in one view: mean over the finished seeds, with sd if there are two; unfinished seeds by themselves. */
function linesOf(series, view) {
  const done = series.runs.filter((run) => run.done);
  const open = series.runs.filter((run) => !run.done);
  const single = (run) => ({
    run, seeds: [run.seed], thin: series.runs.length > 1, open: !run.done,
    points: run.epoch.map((e, i) => ({ e, y: run.accuracy[curves.split][view][i], sd: null })),
  });
  if (curves.seeds === "each" || !done.length) return series.runs.map(single);
  const values = new Map();
  for (const run of done) {
    run.epoch.forEach((e, i) => {
      if (!values.has(e)) values.set(e, []);
      values.get(e).push(run.accuracy[curves.split][view][i]);
    });
  }
  const points = [...values].filter(([, ys]) => ys.length === done.length).sort((a, b) => a[0] - b[0]).map(([e, ys]) => {
    const y = ys.reduce((a, b) => a + b) / ys.length;
    const sd = ys.length > 1 ? Math.sqrt(ys.reduce((a, b) => a + (b - y) ** 2, 0) / (ys.length - 1)) : null;
    return { e, y, sd };
  });
  return [{ seeds: done.map((r) => r.seed), thin: false, open: false, points }, ...open.map((r) => ({ ...single(r), thin: true }))];
}

function drawCurves() {
  const net = DATA.nets[curves.net];
  const all = seriesOf();
  shown = all.filter((s) => !curves.off.has(s.recipe)).map((s) => ({
    ...s, shape: shapeOf(s, all),
    lines: views().flatMap((view) => linesOf(s, view).map((l) => ({ ...l, view }))),
  }));
  const width = Math.max(curvePlot.clientWidth, 240);
  const phone = width < 640;
  const height = phone ? 300 : 430;
  const box = { left: 40, right: width - (phone ? 12 : 170), top: 34, bottom: height - 40 };
  const last = Math.max(1, ...all.map((s) => s.epochs));
  const highest = Math.max(net.chance, ...shown.flatMap((s) => s.lines.flatMap((l) => l.points.map((p) => p.y + (p.sd || 0)))));
  const top = Math.min(100, Math.ceil((highest + 2) / 10) * 10);
  const x = (e) => box.left + ((box.right - box.left) * e) / last;
  const y = (v) => box.bottom - ((box.bottom - box.top) * Math.min(v, top)) / top;
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
  if (!phone) picture.append(endLabels(x, y, box, last));
  const cross = svg("g", {});
  picture.append(cross);
  follow(picture, cross, x, y, box, last);
  curvePlot.replaceChildren(picture);
  drawLegend(all);
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
  const unfinished = s.runs.some((r) => !r.done) ? ", some runs unfinished" : "";
  return `${s.label}: ends at ${views().map((v) => `${end(v)} % in the ${v} view`).join(" and ")}${unfinished}.`;
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
  const end = l.points.at(-1);
  const stroke = {
    fill: "none", stroke: color("s" + s.slot), "stroke-width": (l.thin ? 1.3 : 2.4) * (s.epochs > 80 ? 0.75 : 1), "stroke-linejoin": "round",
    "stroke-dasharray": l.view === "binary" ? "6 4" : null, "stroke-opacity": l.thin ? 0.8 : 1,
  };
  return svg("g", { class: "series" }, svg("path", { d: trace(l.points, x, y), ...stroke }),
    marker(s.slot, s.shape, x(end.e), y(end.y), l.open, l.thin ? 0.7 : 0.95));
}

/* Names at the ends of the lines, pushed apart so that none covers another. */
function endLabels(x, y, box, last) {
  const ends = shown.map((s) => {
    const l = s.lines.filter((l) => l.points.length).at(-1);
    return l ? { s, y: y(l.points.at(-1).y), e: l.points.at(-1).e } : null;
  }).filter((end) => end && end.e > last * 0.9).sort((a, b) => a.y - b.y);
  const gap = 17;
  ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + gap); });
  for (let i = ends.length - 1, limit = box.bottom + 6; i >= 0; i--, limit -= gap) ends[i].y = Math.min(ends[i].y, limit);
  return svg("g", {}, ends.map(({ s, y: at }) => {
    const short = s.label.length > 24 ? s.label.slice(0, 23) + "…" : s.label;
    return label(box.right + 13, at + 4, short, { fill: color("s" + s.slot), "font-size": 12.5, "font-weight": 600 });
  }));
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
      const sign = svg("svg", { viewBox: "-7 -7 14 14" }, marker(s.slot, s.shape, 0, 0, false));
      return dots.length ? { y: Math.max(...dots.map((p) => p.y)), cells: [s.label, ...views().map(cell)], sign } : null;
    }).filter(Boolean).sort((a, b) => b.y - a.y);
    const table = el("table", {},
      el("thead", {}, el("tr", {}, el("th", {}), views().map((v) => el("th", { scope: "col" }, v)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, el("td", { class: "label" }, row.sign, " ", row.cells[0]), row.cells.slice(1).map((c) => el("td", {}, c))))));
    const at = picture.getBoundingClientRect();
    showTip({ x: at.left + window.scrollX + x(e), y: at.top + window.scrollY + (isPhone() ? box.bottom : box.top) }, el("b", {}, `epoch ${e}`), table);
    document.getElementById("curve-live").textContent = `Epoch ${e}. ` + rows.map((r) => r.cells.join(" ")).join("; ");
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

function drawLegend(all) {
  curveLegend.replaceChildren(...all.map((s) => {
    const on = !curves.off.has(s.recipe);
    const sample = svg("svg", { viewBox: "0 -7 34 14", "aria-hidden": "true" }, line(0, 0, 34, 0, color("s" + s.slot), { "stroke-width": 2.4 }), marker(s.slot, shapeOf(s, all), 17, 0, false, 0.9));
    const done = s.runs.filter((r) => r.done).length;
    const open = s.runs.length - done;
    const n = [done ? `n = ${done}` : "", open ? `${open} unfinished` : ""].filter(Boolean).join(", ");
    const toggle = () => {
      if (on) curves.off.add(s.recipe); else curves.off.delete(s.recipe);
      const place = all.indexOf(s);
      drawCurves();
      curveLegend.children[place].focus();
    };
    return el("button", { type: "button", "aria-pressed": on, title: s.recipe, onclick: toggle }, sample, el("span", {}, s.label, " ", el("small", {}, n)));
  }));
}

function curveTable() {
  const columns = shown.flatMap((s) => s.lines.map((l) => ({ s, l })));
  const epochs = [...new Set(columns.flatMap(({ l }) => l.points.map((p) => p.e)))].sort((a, b) => a - b);
  const head = ["epoch", ...columns.map(({ s, l }) => `${s.label}, ${l.view}, ${l.seeds.length > 1 ? `mean of ${l.seeds.length}` : `seed ${l.seeds[0]}`}${l.open ? " (unfinished)" : ""}`)];
  const rows = epochs.map((e) => [String(e), ...columns.map(({ l }) => {
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
