"use strict";

// Sorting: rows that belong together share a <tbody>, and it moves as a whole.
const number = text => parseFloat(text.replace(/,/g, "").replace("−", "-"));
const cell = (body, column) => (body.rows[0].cells[column]?.textContent ?? "").trim();

function compare(column, sign) {
  return (one, other) => {
    const [a, b] = [cell(one, column), cell(other, column)];
    if (!a || !b) return (a ? 0 : 1) - (b ? 0 : 1);
    const [x, y] = [number(a), number(b)];
    return sign * (Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y);
  };
}

function sort(table, header, column) {
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  table.querySelectorAll("[aria-sort]").forEach(other => other.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  table.append(...[...table.tBodies].sort(compare(column, ascending ? 1 : -1)));
}

document.querySelectorAll("table.sortable").forEach(table => {
  table.querySelectorAll("th[data-column]").forEach(header => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sort(table, header, Number(header.dataset.column)));
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
