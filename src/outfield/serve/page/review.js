// The queue of inputs that the service kept: each with its picture or row, and buttons that tell what it is.

const $ = (id) => document.getElementById(id);
let guard, tools, next = null, pictures = [];

// What is kept, said in words, and its first page; nothing is shown where nothing is kept.
export async function choose(chosen, given) {
  [guard, tools] = [chosen, given];
  const { review } = guard;
  $("review").hidden = $("keeps").hidden = !review;
  if (!review) return;
  const { share, sample, limit } = review;
  const parts = [
    ...(share ? [`${share < 1 ? `${tools.percent(share)} of ` : ""}what this guard refuses`] : []),
    ...(sample ? [`a random ${tools.percent(sample)} of all that is sent`] : []),
  ];
  $("keeps").textContent = parts.length ? `⚠ This service keeps ${parts.join(" and ")}, so that people can look at it: up to ${(limit / 1e9).toLocaleString("en", { maximumSignificantDigits: 2 })} GB, the oldest go first.` : "";
  await load("");
}

async function load(after) {
  const asked = guard;
  const told = await tools.ask(`v1/queue?guard=${encodeURIComponent(guard.name)}&show=${$("review-show").value}&after=${after}`);
  if (asked !== guard) return;
  pictures.forEach((url) => URL.revokeObjectURL(url));
  pictures = [];
  next = told.next;
  const { items, reviewed, sample, sample_reviewed: done } = told.counts;
  const count = (number) => number.toLocaleString("en");
  $("review-count").textContent = `${count(items)} kept, ${count(reviewed)} reviewed${sample ? `; of the random sample ${count(done)} of ${count(sample)}: all of it must be reviewed before it may set a threshold` : ""}.`;
  $("queue").replaceChildren(...told.items.map((item) => shown(item)));
  $("review-next").hidden = !next;
}

function shown(item) {
  const { element } = tools;
  if (item.error) return element("li", {}, element("div", {}, item.error));
  const { verdict } = item;
  const name = verdict.class_name ?? (verdict.class_index === null ? "" : `class ${verdict.class_index}`);
  const said = element("span", { class: "said", role: "status" }, words(item.review));
  const classes = guard.review.classes;
  const choice = element("select", { "aria-label": "Class" }, ...classes.map((one) => element("option", { value: one }, one)));
  const likely = item.review?.class ?? verdict.class_name ?? String(verdict.class_index);
  if (classes.includes(likely)) choice.value = likely;
  const tell = async (known) => {
    const body = JSON.stringify({ id: item.id, known, ...(known && classes.length ? { class: choice.value } : {}) });
    try {
      said.textContent = words(await tools.ask("v1/feedback", { method: "POST", body, headers: { "Content-Type": "application/json" } }));
      made.classList.add("done");
    } catch (error) {
      said.textContent = error.message;
    }
  };
  const button = (text, known) => {
    const found = element("button", { type: "button" }, text);
    found.addEventListener("click", () => tell(known));
    return found;
  };
  const refused = verdict.is_ood ? "OOD" : verdict.accept === false ? "unsure" : verdict.accept ? "accepted" : "ID";
  const made = element("li", { class: item.review ? "done" : "" },
    item.row ? element("span", { class: "cells" }, cells(item.row)) : picture(item),
    element("div", {},
      element("span", { class: "verdict" }, element("span", {}, name), element("span", {}, refused)),
      `p = ${verdict.p_value.toFixed(4)}${item.sample ? ", random sample" : ""}`, element("br"),
      element("small", {}, `${item.time.slice(0, 19).replace("T", " ")} UTC`)),
    element("div", { class: "buttons" }, ...(classes.length ? [choice] : []), button("Known", true), button("Unknown", false)), said);
  return made;
}

const words = (review) => (!review ? "" : !review.known ? "Reviewed: unknown" : `Reviewed: known${review.class === null ? "" : `, ${review.class}`}`);

function cells(row) {
  const names = Object.entries(row).map(([name, cell]) => `${name} ${Array.isArray(cell) ? `${cell.slice(0, 8).map((one) => tools.number(one)).join(", ")}${cell.length > 8 ? ", …" : ""}` : typeof cell === "number" ? (Number.isInteger(cell) ? cell : Number(cell.toPrecision(4))) : cell ?? "–"}`);
  return `${names.slice(0, 8).join(", ")}${names.length > 8 ? ", …" : ""}`;
}

function picture(item) {
  const made = tools.element("img", { alt: item.verdict.file ?? "a kept image" });
  tools.get(`v1/queue/${item.id}/image`).then((answer) => answer.blob()).then((content) => {
    pictures.push(made.src = URL.createObjectURL(content));
  }).catch((error) => made.replaceWith(error.message));
  made.addEventListener("load", () => made.classList.toggle("small", made.naturalWidth <= 64));
  return made;
}

const again = (after) => load(after).catch((error) => { $("review-count").textContent = error.message; });
$("review-show").addEventListener("change", () => again(""));
$("review-again").addEventListener("click", () => again(""));
$("review-next").addEventListener("click", async () => { await again(next); $("review").scrollIntoView(); });
