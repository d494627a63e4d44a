"use strict";

// Sorting: rows that belong together share a <tbody>, and it moves as a whole. The first click puts the best first.
const number = text => parseFloat(text.replace(/,/g, "").replace("−", "-"));
const opposite = { ascending: "descending", descending: "ascending" };

function value(body, column, numbers) {
  const cell = body.rows[0].cells[column];
  const text = (cell?.dataset.value ?? cell?.textContent ?? "").trim();
  return numbers ? number(text) : text;
}

function compare(column, numbers, sign) {
  const empty = found => (numbers ? Number.isNaN(found) : found === "" || found === "–");
  return (one, other) => {
    const [a, b] = [value(one, column, numbers), value(other, column, numbers)];
    if (empty(a) || empty(b)) return empty(a) - empty(b);  // last, whatever the order
    return sign * (numbers ? a - b : a.localeCompare(b, undefined, { numeric: true }));
  };
}

function sort(table, header) {
  const order = opposite[header.getAttribute("aria-sort")] ?? header.dataset.first;
  table.querySelectorAll("[aria-sort]").forEach(other => other.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", order);
  const numbers = header.classList.contains("number");
  const sign = order === "ascending" ? 1 : -1;
  table.append(...[...table.tBodies].sort(compare(Number(header.dataset.column), numbers, sign)));
}

document.querySelectorAll("table.sortable").forEach(table => {
  table.querySelectorAll("th[data-column]").forEach(header => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sort(table, header));
  });
});

// Light or dark, whatever the system prefers.
const theme = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const shown = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
const label = () => { theme.textContent = shown() === "dark" ? "Light" : "Dark"; };
theme.hidden = false;
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = shown() === "dark" ? "light" : "dark";
  label();
});
dark.addEventListener("change", label);
label();

// Which section is being read.
const links = new Map([...document.querySelectorAll(".contents a")].map(link => [link.hash.slice(1), link]));
const sections = [...document.querySelectorAll("main > section[id]")];
function mark() {
  const read = sections.filter(section => section.getBoundingClientRect().top < innerHeight / 3).pop();
  links.forEach((link, id) => link.classList.toggle("here", id === read?.id));
}
addEventListener("scroll", mark, { passive: true });
mark();

// Paper shows everything but the log.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open], .log)")];
  opened.forEach(part => { part.open = true; });
});
addEventListener("afterprint", () => opened.forEach(part => { part.open = false; }));
