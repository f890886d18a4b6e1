"use strict";
// Makes the heads of tables buttons that sort them: by the number of a cell, else by its text.
// Long tables have a field that hides the lines without its text.
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0];
  const key = (row, at) => {
    const cell = row.cells[at];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const compare = (a, b) => {
        const [x, y] = [key(a, at), key(b, at)];
        return (x < y ? -1 : x > y ? 1 : 0) * (falling ? -1 : 1);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
  if (body.rows.length < 10) continue;
  const field = Object.assign(document.createElement("input"), {
    type: "search", placeholder: "Only lines with this text",
  });
  field.setAttribute("aria-label", field.placeholder);
  field.addEventListener("input", () => {
    const text = field.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(text);
  });
  table.before(field);
}
