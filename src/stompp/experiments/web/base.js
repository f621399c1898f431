"use strict";
// What both figures share: the data, the theme, elements, axes, the tooltip. Text from files only ever becomes text
// nodes and attribute values, never markup.

const root = document.documentElement;
const errors = [];
function report(message) {
  errors.push(String(message));
  root.dataset.errors = JSON.stringify(errors);
}
window.addEventListener("error", (event) => report(event.message));
window.addEventListener("unhandledrejection", (event) => report(event.reason));
document.addEventListener("securitypolicyviolation", (event) => report("blocked: " + event.violatedDirective));

const DATA = JSON.parse(document.getElementById("data").textContent);
const figures = []; // functions that draw a figure at its present size, in the present theme
for (const [n, net] of DATA.nets.entries()) {
  for (const [i, series] of net.series.entries()) {
    series.id = `${n}.${i}`;
    for (const run of series.runs) { // lists that runs share are kept once; a view that is left out is the current one
      run.epoch = DATA.lists[run.epoch];
      run.at = { test: DATA.lists[run.at], train: run.epoch };
      run.history.epoch = DATA.lists[run.history.epoch];
      for (const part of run.history.parts) part.rows = DATA.lists[part.rows];
      for (const split of Object.values(run.accuracy)) split.binary ??= split.current;
    }
  }
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null));
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const color = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
const isPhone = () => window.innerWidth <= 640;
const fixed = (value, digits = 1) => value.toFixed(digits).replace("-", "−");

/* A button group: one of `options` ([value, text]) is chosen. */
function choice(title, options, chosen, choose) {
  const buttons = options.map(([value, text]) =>
    el("button", { type: "button", "aria-pressed": value === chosen, onclick: () => pick(value) }, text));
  function pick(value) {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", options[i][0] === value));
    choose(value);
  }
  return el("fieldset", {}, el("legend", {}, title), el("div", { class: "choice" }, buttons));
}

/* A dropdown of `options` ([value, text, group]); neighbours of one group stand under its name. */
function dropdown(title, id, options, chosen, choose) {
  const select = el("select", { id, onchange: (event) => choose(event.target.value) });
  setOptions(select, options, chosen);
  return el("label", {}, title, select);
}

function setOptions(select, options, chosen) {
  select.replaceChildren();
  let into = null;
  for (const [value, text, group] of options) {
    if (group && into?.label !== group) select.append((into = el("optgroup", { label: group })));
    (group ? into : select).append(el("option", { value, selected: value === chosen ? "" : null }, text));
  }
}

/* Round numbers from `low` to `high`, about `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step) found.push(+v.toPrecision(10));
  return found;
}

/* Colour and shape stand for the same thing, so that neither has to be told apart alone. */
const SHAPES = [
  "M0-5A5 5 0 1 1 0 5A5 5 0 1 1 0-5Z", "M-4.5-4.5H4.5V4.5H-4.5Z", "M0-6L5.6 4.4H-5.6Z", "M0-6.2L6.2 0L0 6.2L-6.2 0Z",
  "M0 6L5.6-4.4H-5.6Z", "M-1.8-5.5H1.8V-1.8H5.5V1.8H1.8V5.5H-1.8V1.8H-5.5V-1.8H-1.8Z",
  "M0-6L1.8-1.9L6-1.9L2.7 1L3.9 5.3L0 2.8L-3.9 5.3L-2.7 1L-6-1.9L-1.8-1.9Z", "M-5.5-3H5.5V3H-5.5Z",
];
function marker(slot, shape, x, y, state, size = 1) {
  const paint = color("s" + slot), hollow = state === "open";
  if (state === "broken") {
    const cross = { d: "M-5-5L5 5M-5 5L5-5", transform: `translate(${x} ${y})`, fill: "none", "stroke-linecap": "round" };
    return svg("g", { class: "broke" }, svg("path", { ...cross, stroke: color("card"), "stroke-width": 6 }), svg("path", { ...cross, stroke: paint, "stroke-width": 2.6 }));
  }
  return svg("path", {
    d: SHAPES[shape], transform: `translate(${x} ${y}) scale(${size})`, stroke: paint, "stroke-width": 1.8,
    fill: hollow ? color("card") : paint,
  });
}
const line = (x1, y1, x2, y2, stroke, more) => svg("line", { x1, y1, x2, y2, stroke, ...more });
const label = (x, y, text, more) =>
  svg("text", { x, y, fill: color("soft"), "font-size": 12, "font-family": color("font"), ...more }, text);

/* The one tooltip. `at` is in page coordinates. */
const tip = el("div", { class: "tip", hidden: "" });
document.body.append(tip);
function showTip(at, ...content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const wide = document.documentElement.clientWidth;
  const left = at.x + 16 + tip.offsetWidth > wide ? at.x - 16 - tip.offsetWidth : at.x + 16;
  tip.style.left = Math.max(8, Math.min(left, wide - tip.offsetWidth - 8)) + "px";
  tip.style.top = at.y + (isPhone() ? 22 : -10) + "px";
}
const hideTip = () => { tip.hidden = true; };

/* Rows of texts as a table with its first row and column as headings. */
function dataTable(caption, head, rows) {
  const cells = (row) => row.map((text, i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, text));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, el("table", {},
    el("caption", {}, el("span", {}, caption)),
    el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, cells(row))))));
}

/* A closed `details` that makes its table when it is opened. */
function alternative(title, make) {
  const details = el("details", { class: "alt" }, el("summary", {}, title));
  details.addEventListener("toggle", () => {
    while (details.children.length > 1) details.lastChild.remove();
    if (details.open) details.append(make());
  });
  return details;
}

function drawAll() {
  hideTip();
  for (const draw of figures) draw();
}

/* On paper everything is open but what the results tell again; and what a link points to always is. */
let unfolded = [];
function unfold() {
  unfolded = [...document.querySelectorAll("details:not(.alt, #runs *):not([open])")];
  for (const details of unfolded) details.open = true;
}
function refold() {
  for (const details of unfolded) details.open = false;
}
function openTarget() {
  const target = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
  if (target?.tagName !== "DETAILS") return;
  target.open = true;
  target.scrollIntoView();
}
window.addEventListener("hashchange", openTarget);

/* Theme: as the system has it, until chosen here; light on paper; `?theme=dark` for pictures. */
const system = matchMedia("(prefers-color-scheme: dark)");
const asked = new URLSearchParams(location.search).get("theme");
let theme = ["light", "dark"].includes(asked) ? asked : "auto";
const themeButton = document.getElementById("theme");
function applyTheme(printing) {
  const dark = !printing && (theme === "auto" ? system.matches : theme === "dark");
  root.dataset.theme = dark ? "dark" : "light";
  themeButton.textContent = dark ? "☀ Light" : "☾ Dark";
  themeButton.setAttribute("aria-label", dark ? "Switch to the light theme" : "Switch to the dark theme");
}
themeButton.addEventListener("click", () => {
  theme = root.dataset.theme === "dark" ? "light" : "dark";
  applyTheme(false);
  drawAll();
});
system.addEventListener("change", () => { applyTheme(false); drawAll(); });
window.addEventListener("beforeprint", () => { unfold(); applyTheme(true); drawAll(); });
window.addEventListener("afterprint", () => { refold(); applyTheme(false); drawAll(); });
let lastWidth = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== lastWidth) requestAnimationFrame(drawAll);
  lastWidth = window.innerWidth;
});
applyTheme(false);
