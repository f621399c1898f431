// Draw everything once; a report of runs without a single epoch has tables only.
root.dataset.figures = 0;
startFilter();
openTarget();
if (allRuns.length) {
  startCurves();
  startAnatomy();
  drawAll();
} else {
  root.dataset.ready = "yes";
}
