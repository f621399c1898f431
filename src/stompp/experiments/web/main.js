// Draw everything once; a report of runs without a single epoch has tables only.
root.dataset.figures = 0;
if (allRuns.length) {
  startCurves();
  startAnatomy();
  drawAll();
} else {
  for (const id of ["curves", "anatomy"]) document.getElementById(id).hidden = true;
  root.dataset.ready = "yes";
}
