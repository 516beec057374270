// Keeps refreshes from getting in a reader's way, says what has changed, and draws curves of what was seen so far.
"use strict";
(() => {
  const SAY_EVERY_MS = 20000, POINTS = 600;
  const said = document.getElementById("said"), stale = document.getElementById("stale");
  const refresh = document.getElementById("refresh");
  const live = () => document.getElementById("live");
  let spoken = live() ? live().dataset.summary : "", spokenAt = 0;
  const series = {};

  const busy = () => {
    const selected = window.getSelection(), part = live();
    if (document.hidden || (refresh && !refresh.checked)) return "Refresh is off.";
    if (part && part.contains(document.activeElement)) return "Refresh waits while the focus is in the content.";
    if (part && selected && !selected.isCollapsed && part.contains(selected.anchorNode)) return "Refresh waits for the selection.";
    return "";
  };
  const tell = (text) => { if (stale) stale.textContent = text; };

  document.addEventListener("htmx:beforeRequest", (event) => {
    const why = busy();
    tell(why);
    if (why) event.preventDefault();
  });
  const failed = () => tell("The dashboard does not answer: this is from " + (live() ? live().dataset.at : "before") + " UTC.");
  document.addEventListener("htmx:sendError", failed);
  document.addEventListener("htmx:timeout", failed);
  document.addEventListener("htmx:responseError", (event) => tell(event.detail.xhr.status + ": this is from " + live().dataset.at + " UTC. " + event.detail.xhr.responseText.slice(0, 300)));

  const speak = () => {
    const now = live() ? live().dataset.summary : "";
    if (now === spoken || Date.now() - spokenAt < SAY_EVERY_MS) return;
    spoken = now;
    spokenAt = Date.now();
    said.textContent = now;
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const chart = (box) => {
    const values = JSON.parse(box.dataset.values), at = Number(box.dataset.at), key = box.getAttribute("aria-label");
    const kept = (series[key] = series[key] || { at: [], values: {} });
    if (kept.at[kept.at.length - 1] !== at) {
      kept.at.push(at);
      for (const name of Object.keys(values)) (kept.values[name] = kept.values[name] || new Array(kept.at.length - 1).fill(null)).push(values[name]);
      for (const name of Object.keys(kept.values)) if (!(name in values)) kept.values[name].push(null);
      if (kept.at.length > POINTS) { kept.at.shift(); Object.values(kept.values).forEach((each) => each.shift()); }
    }
    const names = Object.keys(kept.values), colours = ["generate", "env", "reward", "tool", "failed", "quiet"];
    const axis = { stroke: colour("text"), grid: { stroke: colour("line") }, ticks: { stroke: colour("line") } };
    box.replaceChildren();
    new uPlot({
      width: Math.min(box.clientWidth || 600, 960), height: 200, axes: [axis, axis], cursor: { show: false }, legend: { live: false },
      // One point alone would be shown among years.
      scales: { x: { range: (_, low, high) => (low === high ? [low - 30, high + 30] : [low, high]) } },
      series: [{}, ...names.map((label, index) => ({ label, stroke: colour(colours[index % colours.length]), width: 2, points: { show: kept.at.length < 2 } }))],
    }, [kept.at, ...names.map((name) => kept.values[name])], box);
  };
  const charts = () => document.querySelectorAll(".chart").forEach(chart);
  document.addEventListener("htmx:afterSwap", () => { tell(""); speak(); charts(); });
  charts();
})();
