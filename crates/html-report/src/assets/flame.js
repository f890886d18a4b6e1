"use strict";
// Flame graphs: a click enlarges a box, a search marks boxes, and the function that was clicked has
// its callers and callees below the graph. The boxes themselves are all the data.
for (const graph of document.querySelectorAll(".flame")) {
  const of = (frame) => Number(frame.dataset.value);
  const name = (frame) => frame.firstElementChild.textContent;
  const caller = (frame) => frame.parentElement.closest(".frame");
  const callees = (frame) => [...frame.lastElementChild.children].map((box) => box.firstElementChild);
  const frames = [...graph.querySelectorAll(".frame")];
  const total = of(frames[0]);
  const amount = (value) => {
    if (graph.dataset.bytes !== "true") return value.toLocaleString("en");
    const unit = Math.min(5, Math.floor(Math.log2(Math.max(value, 1)) / 10));
    const number = value / 1024 ** unit;
    return `${unit ? number.toFixed(1) : number} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
  };
  const share = (value) => `${amount(value)}, ${(100 * value / total).toFixed(1)} %`;
  const make = (tag, properties, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  // Of boxes within each other, only the outermost counts.
  const sum = (boxes) => {
    const all = new Set(boxes);
    const inner = (frame) => {
      for (let at = caller(frame); at; at = caller(at)) if (all.has(at)) return true;
      return false;
    };
    return boxes.reduce((sum, frame) => sum + (inner(frame) ? 0 : of(frame)), 0);
  };

  const enlarge = (frame) => {
    for (const box of graph.querySelectorAll(".whole, .beside")) {
      box.classList.remove("whole", "beside");
    }
    for (let at = frame; caller(at); at = caller(at)) {
      for (const box of at.parentElement.parentElement.children) {
        box.classList.add(box === at.parentElement ? "whole" : "beside");
      }
    }
  };

  const related = make("div", { className: "related" });
  const list = (title, boxes) => {
    const sums = new Map();
    for (const [other, value] of boxes) sums.set(other, (sums.get(other) ?? 0) + value);
    const lines = [...sums].sort((a, b) => b[1] - a[1]).slice(0, 20);
    const line = ([other, value]) => {
      const button = make("button", { type: "button", textContent: other });
      button.addEventListener("click", () => show(other));
      return make("li", {}, button, ` ${share(value)}`);
    };
    return make("div", {}, make("b", { textContent: title }), make("ul", {}, ...lines.map(line)));
  };
  const show = (function_) => {
    const own = frames.filter((frame) => name(frame) === function_);
    const above = own.filter(caller).map((frame) => [name(caller(frame)), of(frame)]);
    const below = own.flatMap(callees).map((frame) => [name(frame), of(frame)]);
    const head = make("p", {}, make("b", { textContent: function_ }), ` ${share(sum(own))}`);
    related.replaceChildren(head, list("Called by", above), list("Calls", below));
    mark((frame) => name(frame) === function_, false);
  };

  const found = make("output", {});
  const mark = (wanted, fades) => {
    const marked = frames.filter((frame) => frame.classList.toggle("found", wanted(frame)));
    graph.classList.toggle("searched", fades && marked.length > 0);
    found.textContent = marked.length ? ` ${share(sum(marked))}; boxes: ${marked.length}` : "";
  };
  const search = make("input", { type: "search", placeholder: "Search functions and files" });
  search.setAttribute("aria-label", search.placeholder);
  search.addEventListener("input", () => {
    const text = search.value.toLowerCase();
    mark((frame) => text !== "" && frame.title.split(": ")[0].toLowerCase().includes(text), true);
  });
  const reset = make("button", { type: "button", textContent: "Whole graph" });
  reset.addEventListener("click", () => {
    search.value = "";
    mark(() => false, false);
    enlarge(frames[0]);
    related.replaceChildren();
  });
  graph.before(make("p", { className: "tools" }, search, " ", reset, found));
  graph.after(related);
  graph.addEventListener("click", (event) => {
    const frame = event.target.closest(".frame");
    if (!frame) return;
    enlarge(frame);
    show(name(frame));
  });
}
