// Draws lanes of bars on canvases. The table beside each canvas says the same, for those who see none.
"use strict";
(() => {
  const LANE = 18, GAP = 4, AXIS = 22, NAMES = 170;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const drawn = new WeakMap();
  const clip = (ctx, text, room) => {
    if (ctx.measureText(text).width <= room) return text;
    while (text && ctx.measureText(text + "…").width > room) text = text.slice(0, -1);
    return text + "…";
  };
  const step = (seconds) => {
    const rough = seconds / 8 || 1, power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  };
  const draw = (canvas) => {
    const told = JSON.parse(canvas.dataset.gantt), ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = told.lanes.length * (LANE + GAP) + AXIS;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = height + "px";
    const ctx = canvas.getContext("2d"), hits = [], seconds = told.seconds || 1;
    const x = (at) => NAMES + (at / seconds) * (width - NAMES - 8);
    ctx.scale(ratio, ratio);
    ctx.font = "12px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    for (let at = 0; at <= seconds; at += step(seconds)) {
      ctx.fillStyle = colour("line");
      ctx.fillRect(x(at), 0, 1, height - AXIS);
      ctx.fillStyle = colour("quiet");
      ctx.fillText(+at.toPrecision(6) + " s", x(at), height - AXIS / 2);
    }
    told.lanes.forEach((lane, row) => {
      const top = row * (LANE + GAP);
      ctx.fillStyle = colour("text");
      ctx.fillText(clip(ctx, lane.name, NAMES - 8), 0, top + LANE / 2);
      for (const [start, end, kind, label, href] of lane.bars) {
        const left = x(start), wide = Math.max(x(end) - left, 1);
        ctx.fillStyle = colour(kind) || colour("quiet");
        ctx.fillRect(left, top, wide, LANE);
        hits.push({ left, top, wide, label, href });
      }
    });
    drawn.set(canvas, hits);
  };
  const hit = (event) => {
    const box = event.target.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const inside = (each) => x >= each.left && x <= each.left + each.wide && y >= each.top && y <= each.top + LANE;
    return (drawn.get(event.target) || []).find(inside);
  };
  const all = () => document.querySelectorAll("canvas.gantt").forEach(draw);
  document.addEventListener("mousemove", (event) => {
    if (!drawn.has(event.target)) return;
    const found = hit(event);
    event.target.title = found ? found.label : "";
    event.target.style.cursor = found && found.href ? "pointer" : "";
  });
  document.addEventListener("click", (event) => {
    const found = drawn.has(event.target) && hit(event);
    if (found && found.href) location.assign(found.href);
  });
  document.addEventListener("htmx:afterSwap", all);
  window.addEventListener("resize", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  all();
})();
