// Rows for a guard of rows, written as CSV: what the Open Inference Protocol is sent, and the verdicts that come back.

export const SEVERAL = 8; // rows of one request, as many as images
const SHOWN = 8; // cells of a row that are shown
const short = (cell) => (typeof cell === "number" ? String(Number(cell.toPrecision(5))) : String(cell ?? "–"));

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

function value(text, datatype, where) {
  if (datatype === "BYTES") return text;
  const plain = text.trim();
  if (datatype === "BOOL") {
    if (/^(true|1)$/i.test(plain)) return true;
    if (/^(false|0)$/i.test(plain)) return false;
    throw new Error(`${where} is "${text}"; it must be true or false.`);
  }
  if (!plain) return null;
  if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain) || !Number.isFinite(Number(plain))) throw new Error(`${where} is "${text}", which is no number.`);
  return Number(plain);
}

function table(inputs, [head, ...lines]) {
  const names = head.map((one) => one.trim());
  const missing = inputs.filter((one) => !names.includes(one.name)).map((one) => one.name);
  if (missing.length) throw new Error(`The first line must name the columns; there is no ${missing.join(", ")}.`);
  const twice = inputs.filter((one) => names.indexOf(one.name) !== names.lastIndexOf(one.name)).map((one) => one.name);
  if (twice.length) throw new Error(`The first line names ${twice.join(", ")} twice.`);
  return lines.map((cells, i) => {
    if (cells.length !== names.length) throw new Error(`Row ${i + 1} has ${cells.length} cells, but there are ${names.length} columns.`);
    const given = inputs.map((one) => value(cells[names.indexOf(one.name)], one.datatype, `Row ${i + 1}: ${one.name}`));
    const shown = inputs.slice(0, SHOWN).map((one, at) => `${one.name} ${short(given[at])}`);
    return { given, text: `${shown.join(", ")}${inputs.length > SHOWN ? ", …" : ""}` };
  });
}

function features(inputs, lines) {
  const width = inputs.reduce((sum, one) => sum + one.shape[1], 0);
  return lines.map((cells, i) => {
    if (cells.length !== width) throw new Error(`Row ${i + 1} has ${cells.length} numbers; this guard takes ${width}.`);
    const numbers = cells.map((one) => value(one, "FP32", `Row ${i + 1}`));
    if (numbers.includes(null)) throw new Error(`Row ${i + 1} has a cell without a number.`);
    let first = 0;
    const given = inputs.map((one) => { first += one.shape[1]; return numbers.slice(first - one.shape[1], first); });
    return { given, text: `${numbers.slice(0, SHOWN).map(short).join(", ")}${width > SHOWN ? ", …" : ""}` };
  });
}

export const kind = (inputs) => (isTable(inputs) ? `A table of ${inputs.length} ${inputs.length === 1 ? "column" : "columns"}` : "Rows of features");
export const isTable = (inputs) => inputs.every((one) => one.shape.length === 1);

// The rows of a text, each with the values of the guard's inputs and how it is shown; an error says what is wrong in it.
export function read(inputs, text) {
  const lines = records(text);
  if (isTable(inputs)) {
    if (lines.length < 2) throw new Error("There is no row: the first line names the columns, the others are rows.");
    return table(inputs, lines);
  }
  if (!lines.length) throw new Error("There is no row.");
  return features(inputs, lines);
}

export function request(inputs, rows) {
  return {
    inputs: inputs.map((one, at) => ({
      name: one.name, datatype: one.datatype, shape: [rows.length, ...one.shape.slice(1)], data: rows.map((row) => row.given[at]),
    })),
  };
}

export function verdicts(answer, names) {
  const column = Object.fromEntries(answer.outputs.map((one) => [one.name, one.data]));
  return column.score.map((score, i) => ({
    score, p_value: column.p_value[i], is_ood: column.is_ood[i], class_name: names[column.label?.[i]] ?? null, members: {}, triggered_by: null,
  }));
}
