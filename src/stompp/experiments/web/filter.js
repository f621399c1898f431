// The filter: one text for all tables of runs and all pickers. Its field stands wherever it matters, always with the same
// words in it. A row, or a run, is found if it has every word in its net, rule or recipe.

const FEW = 12; // rows that need no filter
const filter = { words: [], text: "", changed: [] };
const matches = (text) => filter.words.every((word) => text.toLowerCase().includes(word));

function startFilter() {
  const recipes = DATA.nets.reduce((n, net) => n + net.series.length, 0);
  if (recipes <= FEW) return;
  document.querySelectorAll(".find").forEach((place, i) => {
    const section = place.closest("section, .card");
    const folds = [...section.querySelectorAll(".net")];
    const count = el("output", { for: `find-${i}` });
    const field = el("input", { type: "search", id: `find-${i}`, placeholder: "resnet-20 bnn, lr 0.01, …", autocomplete: "off", spellcheck: "false", oninput: () => setFilter(field.value) });
    place.append(el("label", { for: `find-${i}` }, "Filter"), field, count);
    if (folds.length > 1) {
      place.append(el("button", { type: "button", onclick: () => setAll(true) }, "Open all"), el("button", { type: "button", onclick: () => setAll(false) }, "Close all"));
    }
    const setAll = (open) => folds.forEach((fold) => { fold.open = open; });
    filter.changed.push(() => {
      field.value = filter.text;
      count.textContent = folds.length ? filterRows(folds) : filterCount();
    });
  });
  setFilter("");
}

function setFilter(text) {
  filter.text = text;
  filter.words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const change of filter.changed) change();
}

/* Hide the rows that are not found; open what has some, and leave it as it was once the filter is empty again. */
function filterRows(folds) {
  let found = 0, total = 0;
  for (const fold of folds) {
    const rows = [...fold.querySelectorAll("tr[data-find]")];
    for (const row of rows) row.hidden = !matches(row.dataset.find);
    const here = rows.filter((row) => !row.hidden).length;
    found += here;
    total += rows.length;
    fold.hidden = here === 0 && rows.length > 0;
    if (filter.words.length) {
      fold.dataset.was ??= fold.open ? "open" : "closed";
      fold.open = here > 0;
    } else if (fold.dataset.was) {
      fold.open = fold.dataset.was === "open";
      delete fold.dataset.was;
    }
  }
  return filter.words.length ? `${found} of ${total} recipes` : `${total} recipes`;
}

function filterCount() {
  const found = allRuns.filter((entry) => matches(entry.find)).length;
  return filter.words.length ? `${found} of ${allRuns.length} runs` : `${allRuns.length} runs`;
}
