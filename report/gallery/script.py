"""What the gallery's page does: filters, sorts, draws overlays as SVG over the pictures, and shows one picture at large."""

from __future__ import annotations

SCRIPT = r"""
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const two = data.names.length === 2, proposals = data.kind === "proposals";
const byId = id => document.getElementById(id);
const state = { thresh: data.thresh, off: new Set(), mode: two ? "differences" : "0", find: "", sort: two ? "difference" : "order",
  labels: false, truth: false, masks: true, keypoints: true };
const CHUNK = 48, BOX = { label: 0, score: 1, x1: 2, y1: 3, x2: 4, y2: 5, partner: 6 };
const SVG = "http://www.w3.org/2000/svg";

const hue = label => (label * 222.49) % 360;
const colorOf = label => `hsl(${hue(label)} 85% ${[58, 68, 46][Math.floor(label / 8) % 3]}%)`;
const heatOf = score => `hsl(${240 - 240 * Math.max(0, Math.min(1, score))} 90% 55%)`;
const nameOf = label => data.classes[label - 1] || (proposals ? "proposal" : `class_${label}`);

function make(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}
const passes = (label, score) => score >= state.thresh && !state.off.has(label);

// Boxes of a picture that are shown now: {side, box, kind: one, only-a, only-b or both}
function shownBoxes(picture) {
  const shown = [];
  picture.sides.forEach((side, index) => {
    if (state.mode !== "differences" && state.mode !== String(index)) return;
    for (const box of side.boxes) {
      if (!passes(box[BOX.label], box[BOX.score])) continue;
      let kind = "one";
      if (state.mode === "differences") {
        const partner = box[BOX.partner] < 0 ? null : picture.sides[1 - index].boxes[box[BOX.partner]];
        kind = partner && passes(partner[BOX.label], partner[BOX.score]) ? "both" : index ? "only-b" : "only-a";
        if (kind === "both" && index === 1) continue;
      }
      shown.push({ side: index, box, kind });
    }
  });
  return shown;
}
function measure(picture) {
  const shown = shownBoxes(picture);
  return { picture, shown, apart: shown.filter(one => one.kind.startsWith("only")).length,
    best: Math.max(0, ...shown.map(one => one.box[BOX.score])) };
}
function toneOf(one) {
  if (one.kind !== "one") return getComputedStyle(document.documentElement).getPropertyValue("--" + one.kind).trim();
  return proposals ? heatOf(one.box[BOX.score]) : colorOf(one.box[BOX.label]);
}
function drawBox(svg, box, attributes, halo) {
  const frame = { x: box[0], y: box[1], width: Math.max(0, box[2] - box[0] + 1), height: Math.max(0, box[3] - box[1] + 1) };
  const group = make("g", {}, svg);
  if (halo) make("rect", { ...frame, class: "halo" }, group);
  make("rect", { ...frame, ...attributes }, group);
  return group;
}
function drawOverlay(view, measured, labels, letter) {
  const { picture, shown } = measured;
  view.querySelector("svg")?.remove();
  const svg = make("svg", { viewBox: `0 0 ${picture.w} ${picture.h}`, preserveAspectRatio: "none" }, view);
  const sides = state.mode === "differences" ? [] : [picture.sides[Number(state.mode)]];
  for (const side of sides) {
    if (state.masks) (side.masks || []).forEach(([label, score, path], place) => {
      if (passes(label, score)) make("path", { d: path, class: "mask", style: `fill: ${colorOf(place + 1)}` }, svg);
    });
    if (state.keypoints) (side.keypoints || []).forEach(([label, score, points]) => {
      if (passes(label, score)) drawKeypoints(svg, points, picture);
    });
  }
  const groups = shown.map(one => {
    const group = drawBox(svg, one.box.slice(BOX.x1, BOX.partner), { class: one.kind, style: `stroke: ${toneOf(one)}` }, !proposals);
    return group;
  });
  if (state.truth && picture.truth) for (const box of picture.truth.boxes)
    drawBox(svg, box.slice(BOX.x1, BOX.partner), { class: "truth" }, true);
  if (labels) drawLabels(svg, shown, groups, picture, letter);
  return groups;
}
function drawLabels(svg, shown, groups, picture, letter) {
  const placed = [], layer = make("g", {}, svg);
  shown.forEach((one, index) => {
    const [label, score, x1, y1, x2, y2] = one.box;
    const text = make("text", { "font-size": letter, "stroke-width": letter / 5 }, layer);
    text.textContent = proposals ? score.toFixed(2) : `${nameOf(label)} ${score.toFixed(2)}`;
    const width = text.getComputedTextLength(), height = letter * 1.15;
    const places = [[x1, y1 - letter * .25], [x1 + letter * .2, y1 + letter], [x2 - width, y1 - letter * .25], [x1, y2 + letter],
      [x1 + letter * .2, y2 - letter * .35]];
    const inside = places.map(([x, y]) => [Math.max(0, Math.min(x, picture.w - width)), Math.max(letter, Math.min(y, picture.h - 1))]);
    const free = inside.find(([x, y]) => !placed.some(other => x < other.x + other.w && other.x < x + width
      && y - height < other.y && other.y - height < y));
    if (!free) { text.remove(); return; }
    placed.push({ x: free[0], y: free[1], w: width });
    text.setAttribute("x", free[0]); text.setAttribute("y", free[1]);
    groups[index].label = text;
  });
}
function drawKeypoints(svg, points, picture) {
  const radius = Math.max(picture.w, picture.h) / 220;
  if (points.length === 17) data.skeleton.forEach(([first, second], place) => {
    if (points[first][2] && points[second][2]) make("line", { x1: points[first][0], y1: points[first][1], x2: points[second][0],
      y2: points[second][1], style: `stroke: hsl(${place * 21} 90% 55%)` }, svg);
  });
  points.forEach(([x, y, visible], place) => {
    if (visible) make("circle", { cx: x, cy: y, r: radius, class: "joint", style: `fill: hsl(${place * 21} 90% 55%)` }, svg);
  });
}

let listed = [], drawn = 0, current = 0;
const watcher = new IntersectionObserver(found => { if (found.some(one => one.isIntersecting)) addCards(); }, { rootMargin: "600px" });

function refresh() {
  const wanted = state.find.toLowerCase();
  listed = data.pictures.filter(picture => picture.id.toLowerCase().includes(wanted)).map(measure)
    .filter(one => one.shown.length || (state.truth && one.picture.truth?.boxes.length));
  if (two && byId("differing").checked) listed = listed.filter(one => one.apart);
  const orders = { difference: (a, b) => b.apart - a.apart, most: (a, b) => b.shown.length - a.shown.length,
    best: (a, b) => b.best - a.best, least: (a, b) => a.best - b.best };
  if (orders[state.sort]) listed.sort(orders[state.sort]);
  byId("grid").replaceChildren();
  drawn = 0;
  addCards();
  const boxes = listed.reduce((sum, one) => sum + one.shown.length, 0), apart = listed.reduce((sum, one) => sum + one.apart, 0);
  byId("count").textContent = `${listed.length} of ${data.pictures.length} pictures, ${boxes} ${proposals ? "proposals" : "boxes"}`
    + (state.mode === "differences" ? `, ${apart} in one run only` : "");
  byId("empty").hidden = listed.length > 0;
  byId("legend").hidden = state.mode !== "differences";
  countClasses();
}
function countClasses() {
  const counts = new Map();
  for (const picture of data.pictures) picture.sides.forEach((side, index) => {
    if (state.mode === "differences" || state.mode === String(index)) for (const box of side.boxes)
      if (box[BOX.score] >= state.thresh) counts.set(box[BOX.label], (counts.get(box[BOX.label]) || 0) + 1);
  });
  for (const chip of document.querySelectorAll("[data-label]"))
    chip.querySelector(".n").textContent = counts.get(Number(chip.dataset.label)) || 0;
}
function addCards() {
  watcher.disconnect();
  for (const one of listed.slice(drawn, drawn + CHUNK)) byId("grid").append(makeCard(one, drawn++));
  if (drawn < listed.length) watcher.observe(byId("grid").lastElementChild);
}
function makeCard(one, place) {
  const { picture, shown, apart } = one, figure = document.createElement("figure");
  figure.tabIndex = 0;
  figure.dataset.id = picture.id;
  const view = document.createElement("div"), image = document.createElement("img"), caption = document.createElement("figcaption");
  view.className = "view";
  view.style.aspectRatio = `${picture.w} / ${picture.h}`;
  image.loading = "lazy"; image.alt = picture.id; image.src = picture.src; image.width = picture.w; image.height = picture.h;
  view.append(image);
  const name = document.createElement("b"), count = document.createElement("span");
  name.textContent = picture.id;
  count.textContent = state.mode === "differences" ? `${apart} of ${shown.length} differ` : `${shown.length}`;
  caption.append(name, count);
  figure.append(view, caption);
  drawOverlay(view, one, false, 0);
  if (state.labels) requestAnimationFrame(() => drawOverlay(view, one, true, 11 * picture.w / Math.max(1, view.clientWidth)));
  figure.addEventListener("click", () => openLarge(place));
  figure.addEventListener("keydown", event => { if (event.key === "Enter") openLarge(place); });
  return figure;
}
function openLarge(place) {
  current = Math.max(0, Math.min(place, listed.length - 1));
  if (!byId("large").open) byId("large").showModal();
  showLarge();
}
function showLarge() {
  const one = listed[current], { picture } = one, stage = byId("stage");
  const view = document.createElement("div"), image = document.createElement("img");
  byId("name").textContent = `${picture.id}  (${current + 1} of ${listed.length})`;
  view.className = "view";
  image.alt = picture.id; image.src = picture.src;
  view.append(image);
  stage.replaceChildren(view);
  const scale = Math.min((stage.clientWidth - 28) / picture.w, (stage.clientHeight - 28) / picture.h);
  view.style.width = `${picture.w * scale}px`; view.style.height = `${picture.h * scale}px`;
  const groups = drawOverlay(view, one, true, 14 / scale);
  const rows = one.shown.map((found, index) => makeRow(found, groups, index));
  byId("rows").replaceChildren(...rows);
}
function makeRow(found, groups, index) {
  const [row, name, score, dot] = ["tr", "td", "td", "i"].map(tag => document.createElement(tag));
  dot.className = "dot"; dot.style.background = toneOf(found);
  const side = { "only-a": `, only in ${data.names[0]}`, "only-b": `, only in ${data.names[1]}` }[found.kind] || "";
  name.append(dot, nameOf(found.box[BOX.label]) + side);
  score.textContent = found.box[BOX.score].toFixed(2);
  row.append(name, score);
  const fade = chosen => groups.forEach((group, other) => {
    for (const part of [group, group.label]) part?.classList.toggle("faded", chosen !== null && other !== chosen);
  });
  row.addEventListener("mouseenter", () => fade(index));
  row.addEventListener("mouseleave", () => fade(null));
  return row;
}

byId("thresh").addEventListener("input", event => {
  state.thresh = Number(event.target.value);
  byId("thresh-value").textContent = state.thresh.toFixed(2);
  refresh();
});
byId("find").addEventListener("input", event => { state.find = event.target.value; refresh(); });
byId("sort").addEventListener("change", event => { state.sort = event.target.value; refresh(); });
byId("differing")?.addEventListener("change", refresh);
for (const name of ["labels", "truth", "masks", "keypoints"]) byId(name)?.addEventListener("change", event => {
  state[name] = event.target.checked; refresh();
});
for (const chip of document.querySelectorAll("[data-label]")) chip.addEventListener("click", () => {
  const label = Number(chip.dataset.label);
  if (!state.off.delete(label)) state.off.add(label);
  chip.setAttribute("aria-pressed", !state.off.has(label));
  refresh();
});
byId("every")?.addEventListener("click", () => {
  const all = state.off.size > 0;
  state.off.clear();
  for (const chip of document.querySelectorAll("[data-label]")) {
    if (!all) state.off.add(Number(chip.dataset.label));
    chip.setAttribute("aria-pressed", all);
  }
  refresh();
});
for (const button of document.querySelectorAll("[data-mode]")) button.addEventListener("click", () => {
  state.mode = button.dataset.mode;
  for (const other of document.querySelectorAll("[data-mode]")) other.setAttribute("aria-pressed", other === button);
  refresh();
});
byId("before").addEventListener("click", () => openLarge(current - 1));
byId("after").addEventListener("click", () => openLarge(current + 1));
byId("close").addEventListener("click", () => byId("large").close());
byId("large").addEventListener("keydown", event => {
  if (event.key === "ArrowLeft") openLarge(current - 1);
  if (event.key === "ArrowRight") openLarge(current + 1);
});
addEventListener("resize", () => { if (byId("large").open) showLarge(); });
for (const dot of document.querySelectorAll("[data-label] .dot")) dot.style.background = colorOf(Number(dot.parentElement.dataset.label));
byId("thresh").value = state.thresh;
byId("thresh-value").textContent = state.thresh.toFixed(2);
refresh();
"""
