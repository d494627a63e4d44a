// Boxes that an object detector found: drawn on the image, and in words.

const percent = (share) => `${Math.round(100 * share)} %`;
const name = (box) => box.class_name ?? `class ${box.class_index}`;

// A frame of the picture and its boxes, each with a word; nothing before the size of the picture is known.
export function draw(element, frame, boxes, isOod) {
  const { naturalWidth: width, naturalHeight: height } = frame.firstChild ?? {};
  frame.querySelector("svg")?.remove();
  if (!width) return;
  const size = Math.max(width, height) / 24;
  const shapes = boxes.map((box) => {
    const kind = isOod(box) ? "box ood" : "box";
    const corner = { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
    const word = element("text", { class: kind, x: box.left + size / 5, y: Math.max(box.top, 0) + size, "font-size": size }, isOod(box) ? `OOD ${name(box)}` : name(box));
    return [element("rect", { class: kind, ...corner }), word];
  });
  frame.append(element("svg", { class: "boxes", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...shapes.flat()));
}

// What the title says, and a line for each box.
export function words(boxes, isOod) {
  const ood = boxes.filter(isOod).length;
  return boxes.length ? `${ood} of ${boxes.length} OOD` : "no boxes";
}

export function list(element, boxes, isOod) {
  const line = (box) => element("li", { class: isOod(box) ? "ood" : "ok" },
    element("span", { class: "word" }, isOod(box) ? "OOD" : "ID"), ` ${name(box)}, ${percent(box.confidence)} sure, p = ${box.p_value.toFixed(4)}`);
  return element("ul", { class: "found", tabindex: 0, "aria-label": "Boxes" }, ...boxes.map(line));
}
