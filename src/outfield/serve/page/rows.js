// Rows for a guard of rows, written as CSV: their cells as they are shown, and the portions that the service is sent.

const SHOWN = 8; // cells of a row that are shown
const short = (cell) => (cell === null || !String(cell).trim() ? "–" : Number.isFinite(Number(cell)) && typeof cell !== "boolean" ? String(Number(Number(cell).toPrecision(4))) : String(cell));

// Lines of cells; a cell in quotes may hold commas, line breaks and doubled quotes. Cells copied from a sheet are parted by tabs.
function records(text) {
  const mark = text.split("\n", 1)[0].includes("\t") ? "\t" : ",";
  const found = [];
  let line = [], cell = "", quoted = false;
  for (let i = 0; i < text.length; i += 1) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') cell += c;
      else if (text[i + 1] === '"') { cell += c; i += 1; } else quoted = false;
    } else if (c === '"' && !cell) quoted = true;
    else if (c === mark) { line.push(cell); cell = ""; }
    else if (c === "\n") { found.push([...line, cell]); line = []; cell = ""; }
    else if (c !== "\r") cell += c;
  }
  if (quoted) throw new Error("A quotation mark is not closed.");
  found.push([...line, cell]);
  return found.filter((one) => one.length > 1 || one[0].trim());
}

export const isTable = (inputs) => inputs.every((one) => one.shape.length === 1);

// The names of the columns, none of features, and the rows of a text, each with its cells and how these are shown; or its lines.
export function read(inputs, text, lined = false) {
  if (lined) {
    const found = text.split("\n").map((one) => one.trim()).filter(Boolean);
    if (!found.length) throw new Error("There is no text.");
    return { head: [inputs[0].name], rows: found.map((one) => ({ cells: [one], text: one.length > 200 ? `${one.slice(0, 200)} …` : one })) };
  }
  const lines = records(text.replace(/^\ufeff/, ""));
  const head = isTable(inputs) || lines[0]?.[0] === "feature_0" ? lines.shift() ?? [] : [];
  if (!lines.length) throw new Error("There is no row: the first line names the columns of a table, the others are rows.");
  const name = (i) => (isTable(inputs) ? `${head[i] ?? "?"} ` : "");
  const rows = lines.map((cells) => {
    const shown = cells.slice(0, SHOWN).map((cell, i) => `${name(i)}${short(cell)}`);
    return { cells, text: `${shown.join(", ")}${cells.length > SHOWN ? ", …" : ""}` };
  });
  return { head, rows };
}

export function csv(head, rows) {
  const line = (cells) => cells.map((cell) => `"${cell.replaceAll('"', '""')}"`).join(",");
  return [...(head.length ? [head] : []), ...rows.map((row) => row.cells)].map(line).join("\n");
}

// Which columns make a row OOD, with what the row has in them and what is usual.
export function reason(why) {
  const names = why.alone.length ? why.alone : why.together;
  if (!names.length) return "no column alone explains it, nor do a few together";
  const known = Object.fromEntries(why.columns.map((one) => [one.column, ` = ${short(one.value)} (usually ${short(one.usual)})`]));
  return `because of ${names.map((one) => `${one}${known[one] ?? ""}`).join(why.alone.length ? " or " : " and ")}`;
}
