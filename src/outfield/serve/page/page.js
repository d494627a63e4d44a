// The page of the service. Everything comes from this server; nothing is kept but a token, for as long as the tab is open.
import * as review from "./review.js";
import * as boxes from "./boxes.js";
import * as rows from "./rows.js";

const $ = (id) => document.getElementById(id);
const POLL = 2000; // milliseconds between two looks at the traffic
const SEVERAL = 8; // images or rows of one request
const MOST = 1000; // rows of a file that are shown
const state = { guards: [], guard: null, images: [], cut: 0, token: sessionStorage.getItem("token") };

async function get(path, options = {}) {
  const headers = state.token ? { Authorization: `Bearer ${state.token}` } : {};
  const answer = await fetch(path, { ...options, headers: { ...headers, ...options.headers } });
  if (answer.status === 401) {
    $("door").hidden = false;
    $("door-says").textContent = state.token ? "This is not the token." : "";
    if (state.token) $("token").select();
    throw new Error("a token is needed");
  }
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).error || answer.statusText), { status: answer.status, answer });
  return answer;
}
const ask = async (path, options) => (await get(path, options)).json();

// Elements without markup: text from files and servers is only ever text.
function element(name, attributes = {}, ...children) {
  const svg = ["svg", "rect", "line", "text", "title"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const number = (value, digits = 3) => (value === null || value === undefined ? "–" : Number(value).toPrecision(digits));
const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`);
const say = (text) => { $("says").textContent = text; };

// Guards and their thresholds

async function begin() {
  const [guards, server] = await Promise.all([ask("v1/guards"), ask("v2")]);
  state.guards = guards;
  $("door").hidden = true;
  $("guard").replaceChildren(...state.guards.map((one) => element("option", { value: one.name }, one.name)));
  $("version").textContent = `${server.name} ${server.version}`;
  choose(state.guards[0].name);
}

async function choose(name) {
  const before = state.guard;
  state.guard = state.guards.find((one) => one.name === name);
  const guard = state.guard;
  if (before && (before.inputs || guard.inputs)) clear(); // rows of one guard are nothing to another
  takes(guard);
  state.cut = guard.threshold;
  $("about").textContent = `${knows(guard)} What is like them is marked ID (in distribution), what is not is marked OOD (out of distribution).`;
  $("members").replaceChildren(...guard.members.map((one) => element("li", {}, one)));
  $("made").textContent = `${guard.inputs ? "" : `Network: ${guard.network}. `}The threshold keeps ${percent(guard.keep, 0)} of ID ${scored()}, as measured on ${guard.calibration.toLocaleString("en")} that were held out. The detector${guard.members.length > 1 ? " sums up" : ""}:`;
  drawScores();
  drawImages();
  traffic();
  review.choose(guard, { ask, get, element, number, percent }).catch((error) => say(error.message));
  const files = state.images.map((one) => one.file);
  if (files.length) { clear(); await check(files); }
}

// What a guard knows, in one sentence.
function knows({ inputs, classes, judges }) {
  const some = (names) => names.slice(0, 12).join(", ") + (names.length > 12 ? ` and ${names.length - 12} more` : "");
  if (judges === "texts") return classes.length ? `This guard knows texts of ${classes.length.toLocaleString("en")} kinds: ${some(classes)}.` : "This guard knows texts like those that it was built with.";
  if (inputs && rows.isTable(inputs)) return `This guard knows rows of a table: ${some(inputs.map((one) => one.name))}.`;
  if (inputs) return `This guard knows rows of ${inputs.reduce((sum, one) => sum + one.shape[1], 0).toLocaleString("en")} numbers, features of a network.`;
  return classes.length ? `This guard knows images of ${classes.length.toLocaleString("en")} kinds: ${some(classes)}.` : "This guard knows images like those that it was built with.";
}

// Images for a guard of images, CSV for a guard of rows, lines or CSV for a guard of texts.
const scored = () => state.guard?.judges ?? "images"; // of a guard of boxes images have several scores
const what = () => (scored() === "boxes" ? "images" : scored());
const lines = () => scored() === "texts";
function takes(guard) {
  const { inputs } = guard;
  if (inputs && $("video").srcObject) closeCamera();
  $("drop").hidden = Boolean(inputs);
  $("table").hidden = !inputs;
  $("h-images").textContent = what()[0].toUpperCase() + what().slice(1);
  $("files").accept = inputs ? ".csv,.tsv,.txt,text/*" : "image/*";
  document.querySelectorAll(".what").forEach((one) => { one.textContent = scored(); });
  $("images").classList.toggle("boxed", guard.judges === "boxes");
  if (!inputs) return;
  const named = rows.isTable(inputs);
  const width = inputs.map((one) => `${one.shape[1]} ${one.name}`).join(", then ");
  $("check-rows").textContent = `Check ${what()}`;
  $("rows-say").textContent = lines() ? `Write texts, each in a line, or drop a CSV with a column ${inputs[0].name} here:` : named ? "Write rows as CSV, or drop a file here. The first line names the columns, in any order:" : `Write rows as CSV, or drop a file here. In each row ${width}:`;
  $("rows").value = named && !lines() ? `${inputs.map((one) => one.name).join(",")}\n` : "";
  const place = new URL(`v1/check?guard=${encodeURIComponent(guard.name)}`, location.href);
  $("place").textContent = `POST ${place.pathname}${place.search}`;
}

function range() {
  const { edges } = state.guard.histogram;
  const seen = judged().map(({ verdict }) => verdict.score).filter((score) => Number.isFinite(score));
  const width = edges.at(-1) - edges[0] || 1;
  // Far scores would press the histogram flat; they are drawn at the edge instead.
  const low = Math.max(edges[0] - 1.5 * width, Math.min(edges[0], ...seen));
  const high = Math.min(edges.at(-1) + 1.5 * width, Math.max(edges.at(-1), ...seen));
  return [low - 0.02 * width, high + 0.02 * width];
}
const kept = (cut) => {
  const { scores } = state.guard;
  let low = 0, high = scores.length;
  while (low < high) { const middle = (low + high) >> 1; if (scores[middle] <= cut) low = middle + 1; else high = middle; }
  return low / scores.length;
};
const all = (verdict) => verdict.boxes ?? [verdict];
// Where the threshold was not moved, the guard's own verdict: some have a threshold for each class.
const isOod = (verdict, cut) => {
  if (verdict.boxes) return verdict.boxes.some((box) => isOod(box, cut));
  return verdict.score === null || (cut === state.guard.threshold ? verdict.is_ood : verdict.score > cut);
};
// Of a guard with an accuracy: known, but the class is probably wrong.
const isUnsure = (verdict) => verdict.accept === false && !isOod(verdict, state.cut);
const judged = () => state.images.filter((one) => one.verdict && !one.verdict.error)
  .flatMap((one) => all(one.verdict).map((verdict) => ({ verdict, name: one.file.name })));

function drawScores() {
  const { counts, edges } = state.guard.histogram;
  const [low, high] = range();
  const place = (score) => (1000 * (Math.min(Math.max(score, low), high) - low)) / (high - low);
  const tallest = Math.max(...counts);
  const bars = counts.map((count, i) => {
    const height = (90 * count) / tallest;
    const beyond = (edges[i] + edges[i + 1]) / 2 > state.cut ? "bar beyond" : "bar";
    return element("rect", { class: beyond, x: place(edges[i]), y: 100 - height, width: Math.max(1, place(edges[i + 1]) - place(edges[i]) - 1), height });
  });
  const marks = judged().map(({ verdict, name }) => {
    const at = place(verdict.score ?? high);
    const mark = element("line", { class: `mark ${isOod(verdict, state.cut) ? "ood" : ""}`, x1: at, x2: at, y1: 76, y2: 100 });
    mark.append(element("title", {}, name));
    return mark;
  });
  const at = place(state.cut);
  $("scores").setAttribute("viewBox", "0 0 1000 100");
  $("scores").replaceChildren(...bars, element("line", { class: "cut", x1: at, x2: at, y1: 0, y2: 100 }), ...marks);
  $("least").textContent = number(low);
  $("most").textContent = number(high);
  const slider = $("threshold");
  slider.value = Math.round(at);
  slider.setAttribute("aria-valuetext", `${number(state.cut, 4)}, keeps ${percent(kept(state.cut))} of ID ${scored()}`);
  $("threshold-says").textContent = number(state.cut, 4);
  const moved = state.cut !== state.guard.threshold;
  $("reset").disabled = !moved;
  const found = judged();
  const flips = found.filter(({ verdict }) => turned(verdict)).length;
  const ood = found.filter(({ verdict }) => isOod(verdict, state.cut)).length;
  const shown = found.length ? ` Of the ${found.length} ${scored()} shown, ${ood} ${ood === 1 ? "is" : "are"} OOD${moved ? `; ${flips} would change` : ""}.` : "";
  $("scores-say").textContent = `${percent(kept(state.cut))} of held-out ID ${scored()} lie at or below it.${shown}`;
}

const turned = (verdict) => isOod(verdict, state.cut) !== verdict.is_ood;
const flipped = (one) => one.verdict && !one.verdict.error && all(one.verdict).some(turned);

$("threshold").addEventListener("input", (event) => {
  if (!state.guard) return;
  const [low, high] = range();
  state.cut = low + ((high - low) * event.target.value) / 1000;
  drawScores();
  drawImages();
});
$("reset").addEventListener("click", () => { state.cut = state.guard.threshold; drawScores(); drawImages(); $("threshold").focus(); });
$("guard").addEventListener("change", (event) => choose(event.target.value));

// Images

async function check(files) {
  if (!state.guard) { say("The service has not answered yet; try again in a moment."); return; }
  if (state.guard.inputs) { await checkTables([...files]); return; }
  const added = [...files].map((file) => {
    const other = file.type && !file.type.startsWith("image/"); // nothing of it is uploaded
    return { file, url: other ? null : URL.createObjectURL(file), verdict: other ? { error: "This file is not an image." } : null };
  });
  state.images.unshift(...added);
  drawImages();
  const path = `v1/check?guard=${encodeURIComponent(state.guard.name)}`;
  const done = await judge(added.filter((one) => !one.verdict), (part) => {
    const form = new FormData();
    part.forEach((one) => form.append("file", one.file, one.file.name));
    return patiently(path, { method: "POST", body: form });
  });
  if (done) tell(added);
}

async function checkTables(files) {
  state.images = [];
  for (const file of files) {
    const lost = (error) => state.images.push({ file, row: { text: "" }, verdict: { error } });
    if (file.type.startsWith("image/")) lost(`This file is an image; this guard looks at ${what()}.`);
    else await checkRows(await file.text(), `${file.name} `).catch((error) => lost(error.message));
  }
  tell(state.images);
}

// The rows of a text; an error is thrown where it has none, or other columns than the guard.
async function checkRows(text, name = "") {
  const { head, rows: found } = rows.read(state.guard.inputs, text, lines() && !name);
  const added = found.slice(0, MOST).map((row, i) => ({ row, file: { name: `${name}row ${i + 1}` }, verdict: null }));
  const why = rows.isTable(state.guard.inputs) && !lines() ? "&why=true" : "";
  const path = `v1/check?guard=${encodeURIComponent(state.guard.name)}${why}`;
  const own = state.images;
  await judge(added, async (part) => {
    const body = rows.csv(head, part.map((one) => one.row));
    const verdicts = await patiently(path, { method: "POST", body, headers: { "Content-Type": "text/csv" } });
    if (own === state.images) own.push(...part);
    return verdicts;
  });
  if (found.length > MOST) own.push({ file: { name: `${name}rows from ${MOST + 1}` }, row: { text: "" }, verdict: { error: "This page shows no more; send longer files to the service." } });
}

// Sends some at a time; false where the guard was changed meanwhile.
async function judge(added, send) {
  const { guard } = state;
  for (let start = 0; start < added.length; start += SEVERAL) {
    const part = added.slice(start, start + SEVERAL);
    say(`Checking ${counted(added.length)} …`);
    const verdicts = await verdictsOn(part, send);
    part.forEach((one, i) => { one.verdict = verdicts[i]; });
    if (guard !== state.guard) return false;
    drawImages();
    drawScores();
  }
  return true;
}

// How many were judged, and how many could not be.
function tell(added) {
  const good = added.filter((one) => !one.verdict.error);
  const failed = added.length - good.length;
  const accepted = good.some((one) => "accept" in one.verdict) ? `${good.filter((one) => one.verdict.accept).length} accepted, ` : "";
  say(`${counted(good.length)} checked, ${accepted}${good.filter((one) => one.verdict.is_ood).length} OOD${failed ? `; ${failed} could not be checked` : ""}.`);
  drawImages();
  drawScores();
  traffic();
}
const counted = (count) => `${count.toLocaleString("en")} ${count === 1 ? what().slice(0, -1) : what()}`;

// A verdict or an error on each; of what is too much together, one by one.
async function verdictsOn(part, send) {
  try {
    return await send(part);
  } catch (error) {
    if (error.status === 400 && part[0].row) throw error; // there is something wrong with the whole table
    if (error.status !== 413 || part.length === 1) return part.map(() => ({ error: error.message }));
    const found = [];
    for (const one of part) found.push(...await verdictsOn([one], send));
    return found;
  }
}

// Asks again where the service is busy.
async function patiently(path, options) {
  for (let tries = 0; ; tries += 1) {
    try {
      return await ask(path, options);
    } catch (error) {
      if (error.status !== 429 || tries === 5) throw error;
      const seconds = Number(error.answer.headers.get("Retry-After")) || 1;
      await new Promise((done) => setTimeout(done, 1000 * seconds));
    }
  }
}

function drawImages() {
  $("clear").hidden = $("clear-rows").hidden = !state.images.length;
  const items = state.images.map(item);
  const shown = $("images").children;
  // Put in anew only when there are others: what is on the screen keeps its place and its focus while the slider moves.
  if (items.length !== shown.length || items.some((one, i) => one !== shown[i])) $("images").replaceChildren(...items);
}

function item(one) {
  one.item ??= element("li", {}, one.url ? picture(one) : element("span", { class: "cells" }, one.row?.text ?? ""), element("div", {}, "…"));
  const { verdict } = one;
  const text = one.item.lastChild;
  if (!verdict) return one.item;
  if (verdict.error) {
    one.item.className = "failed";
    text.replaceChildren(title(one.file.name, "error"), verdict.error);
    return one.item;
  }
  const ood = isOod(verdict, state.cut);
  one.item.className = `${ood ? "ood" : isUnsure(verdict) ? "unsure" : "ok"}${flipped(one) ? " flipped" : ""}`;
  if (verdict.boxes) {
    const beyond = (box) => isOod(box, state.cut);
    boxes.draw(element, one.item.firstChild, verdict.boxes, beyond);
    text.replaceChildren(title(one.file.name, boxes.words(verdict.boxes, beyond)), boxes.list(element, verdict.boxes, beyond));
    return one.item;
  }
  one.members ??= members(verdict);
  const label = verdict.class_name ?? (one.row ? one.file.name : `class ${verdict.class_index}`);
  text.replaceChildren(
    title(label, ood ? "OOD" : isUnsure(verdict) ? "unsure" : verdict.accept ? "accepted" : "ID"),
    element("span", {}, `p = ${verdict.p_value.toFixed(4)}${"p_right" in verdict && !ood ? `; right with a chance of ${percent(verdict.p_right, 0)}` : ""}`, element("br")),
    element("span", { class: "more" }, `score ${number(verdict.score, 4)}${verdict.triggered_by ? `; triggered by ${verdict.triggered_by}` : ""}`));
  if (flipped(one)) text.append(element("br"), element("span", { class: "flip" }, `was ${verdict.is_ood ? "OOD" : "ID"}`));
  if (verdict.why) text.append(element("span", { class: "why" }, rows.reason(verdict.why)));
  if (one.members) text.append(one.members);
  return one.item;
}

const title = (name, word) => element("span", { class: "verdict" }, element("span", {}, name), element("span", { class: "word" }, word));

function members(verdict) {
  const several = Object.entries(verdict.members);
  if (several.length < 2) return null;
  const rows = several.map(([name, p]) => element("li", {}, `${name}: p = ${number(p)}`));
  return element("details", {}, element("summary", {}, "members"), element("ul", {}, ...rows));
}

function picture(one) {
  const made = element("img", { src: one.url, alt: one.file.name });
  made.addEventListener("error", () => made.remove());
  made.addEventListener("load", () => { made.classList.toggle("small", made.naturalWidth <= 64); drawImages(); });
  return element("span", { class: "frame" }, made);
}

function clear() {
  state.images.forEach((one) => { if (one.url) URL.revokeObjectURL(one.url); });
  state.images = [];
  say("");
  drawImages();
  drawScores();
}

for (const id of ["choose", "choose-rows"]) $(id).addEventListener("click", () => $("files").click());
$("files").addEventListener("change", async (event) => { await check(event.target.files); event.target.value = ""; });
$("table").addEventListener("submit", (event) => {
  event.preventDefault();
  state.images = [];
  checkRows($("rows").value).then(() => tell(state.images), (error) => { clear(); say(error.message); });
});
$("clear-rows").addEventListener("click", () => { clear(); $("rows").focus(); });
$("clear").addEventListener("click", () => { clear(); $("choose").focus(); });
document.addEventListener("paste", (event) => { if (event.clipboardData?.files.length) check(event.clipboardData.files); });
document.addEventListener("dragover", (event) => { event.preventDefault(); $("drop").classList.add("over"); });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").classList.remove("over"); });
document.addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  check(event.dataTransfer.files);
});

// The camera

async function openCamera() {
  try {
    $("video").srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    await $("video").play();
    $("viewfinder").hidden = false;
    $("shoot").focus();
  } catch (error) {
    say(navigator.mediaDevices ? `The camera cannot be used: ${error.message}` : "Browsers give a camera only to pages from this machine or over HTTPS.");
  }
}
function closeCamera() {
  $("video").srcObject?.getTracks().forEach((track) => track.stop());
  $("video").srcObject = null;
  $("viewfinder").hidden = true;
  $("camera").focus();
}
$("camera").addEventListener("click", openCamera);
$("close").addEventListener("click", closeCamera);
$("shoot").addEventListener("click", () => {
  const { videoWidth: width, videoHeight: height } = $("video");
  draw("camera", width, height, (pen) => pen.drawImage($("video"), 0, 0)).then((file) => check([file]));
});

// Examples that are drawn here, so that there is something to try: simple scenes, and patterns that are no photograph

function draw(name, width, height, paint) {
  const canvas = element("canvas", { width, height });
  paint(canvas.getContext("2d"));
  return new Promise((done) => canvas.toBlob((blob) => done(new File([blob], `${name}.png`, { type: "image/png" }))));
}
function sky(pen, top, bottom) {
  const shade = pen.createLinearGradient(0, 0, 0, 96);
  shade.addColorStop(0, top);
  shade.addColorStop(1, bottom);
  pen.fillStyle = shade;
  pen.fillRect(0, 0, 96, 96);
}
function shape(pen, colour, ...points) {
  pen.fillStyle = colour;
  pen.beginPath();
  points.forEach(([x, y]) => pen.lineTo(x, y));
  pen.fill();
}
function disc(pen, colour, x, y, radius) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 7);
  pen.fill();
}
const EXAMPLES = {
  "a ship": (pen) => {
    sky(pen, "#9cc4e8", "#dcecf7");
    shape(pen, "#2d5f8c", [0, 62], [96, 62], [96, 96], [0, 96]);
    shape(pen, "#7a2f22", [12, 56], [84, 56], [74, 74], [24, 74]);
    shape(pen, "#f4f4f0", [30, 42], [66, 42], [66, 56], [30, 56]);
    shape(pen, "#c9453a", [42, 24], [52, 24], [52, 42], [42, 42]);
  },
  "a plane": (pen) => {
    sky(pen, "#5d95d0", "#cfe4f5");
    shape(pen, "#e9edf1", [8, 48], [20, 42], [80, 42], [92, 49], [80, 55], [20, 55]);
    shape(pen, "#b9c2cc", [38, 48], [58, 48], [34, 78], [26, 78]);
    shape(pen, "#b9c2cc", [40, 43], [56, 43], [44, 26], [38, 26]);
    shape(pen, "#c9453a", [10, 46], [22, 42], [14, 26], [7, 26]);
  },
  "a truck": (pen) => {
    sky(pen, "#c7d6e2", "#eef2f4");
    shape(pen, "#77797c", [0, 74], [96, 74], [96, 96], [0, 96]);
    shape(pen, "#d9dee2", [8, 26], [60, 26], [60, 70], [8, 70]);
    shape(pen, "#c23b2e", [62, 38], [80, 38], [90, 54], [90, 70], [62, 70]);
    shape(pen, "#a9d0e8", [68, 42], [78, 42], [85, 54], [68, 54]);
    [22, 40, 78].forEach((x) => { disc(pen, "#1f2124", x, 72, 9); disc(pen, "#9a9da1", x, 72, 4); });
  },
  "stripes": (pen) => { for (let i = 0; i < 12; i += 1) { pen.fillStyle = i % 2 ? "#f5d90a" : "#1b1b1b"; pen.fillRect(8 * i, 0, 8, 96); } },
  "noise": (pen) => {
    const noise = pen.createImageData(96, 96);
    let seed = 7;
    for (let i = 0; i < noise.data.length; i += 1) { seed = (1103515245 * seed + 12345) % 2147483648; noise.data[i] = i % 4 === 3 ? 255 : (seed >> 16) & 255; }
    pen.putImageData(noise, 0, 0);
  },
  "a digit": (pen) => { pen.fillStyle = "#101010"; pen.fillRect(0, 0, 96, 96); pen.fillStyle = "#fafafa"; pen.font = "bold 84px sans-serif"; pen.fillText("7", 24, 78); },
  "discs": (pen) => { pen.fillStyle = "#f3efe6"; pen.fillRect(0, 0, 96, 96); ["#d1495b", "#00798c", "#edae49", "#30638e"].forEach((colour, i) => disc(pen, colour, 26 + 44 * (i % 2), 26 + 44 * (i >> 1), 18)); },
  "black": (pen) => { pen.fillRect(0, 0, 96, 96); },
};
$("examples").addEventListener("click", async () => {
  check(await Promise.all(Object.entries(EXAMPLES).map(([name, paint]) => draw(name, 96, 96, paint))));
});

// Traffic

async function traffic() {
  if (!state.guard || document.hidden) return;
  try {
    const name = state.guard.name;
    const told = await ask(`v1/traffic?guard=${encodeURIComponent(name)}`);
    if (name === state.guard.name) drawTraffic(told);
  } catch (error) {
    $("alarm").className = "";
    $("alarm").textContent = `The service does not answer: ${error.message}`;
  }
}

function drawTraffic(told) {
  const entry = (name, value, more) => element("div", {}, element("dt", {}, name), element("dd", {}, value, element("small", {}, more)));
  const watched = scored() === "boxes" ? "images with boxes" : scored(); // of each one box
  $("alarm").className = told.alarm ? "rings" : "";
  $("alarm").textContent = told.alarm ? `⚠ Drift, found after ${told.alarm_at.toLocaleString("en")} ${watched}` : told.samples ? "No drift found" : "Nothing was checked yet";
  $("numbers").replaceChildren(
    entry(watched, told.samples.toLocaleString("en"), `${told.ood.toLocaleString("en")} OOD`),
    entry("share OOD", percent(told.share_ood), told.samples ? `${percent(told.share_low)} to ${percent(told.share_high)}` : ""),
    entry("recent share", percent(told.recent_share), `${percent(told.expected)} expected of ID`));
  const tallest = Math.max(...told.histogram, 1);
  const width = 1000 / told.histogram.length;
  const even = 100 - (95 * told.samples) / told.histogram.length / tallest;
  const bars = told.histogram.map((count, i) => {
    const height = (95 * count) / tallest;
    return element("rect", { class: (i + 0.5) / told.histogram.length < told.expected ? "bar beyond" : "bar", x: i * width, y: 100 - height, width: width - 2, height });
  });
  $("p-values").setAttribute("viewBox", "0 0 1000 100");
  const line = told.samples ? [element("line", { class: "even", x1: 0, x2: 1000, y1: even, y2: even })] : [];
  $("p-values").replaceChildren(...bars, ...line);
  const odds = (log) => `${log > 14 ? "over a million" : Math.exp(log).toLocaleString("en", { maximumSignificantDigits: 2 })} to 1`;
  const evidence = `So far the evidence of drift is ${odds(told.largest_log_wealth)}. The alarm comes at ${odds(told.limit)}; a false one comes with probability ${told.alpha} at most, however long this runs.`;
  $("p-says").textContent = `P-values of ID ${scored()} are uniform: the dashed line. ${told.samples ? evidence : ""}`;
}

setInterval(traffic, POLL);
document.addEventListener("visibilitychange", traffic);

$("door").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = $("token").value.trim();
  sessionStorage.setItem("token", state.token);
  begin().catch((error) => { $("door-says").textContent ||= error.message; });
});
begin().catch((error) => { if ($("door").hidden) say(`The service does not answer: ${error.message}`); else $("token").focus(); });
