// Measures the open page. Returns complaints, as sentences. `kind` is the medium, or "sort".
(kind) => {
  const found = [];
  // The name of an element, for complaints.
  const name = (element) => element.closest("figure")?.querySelector("figcaption")?.textContent
    ?? element.textContent.slice(0, 40);
  if (kind === "sort") {
    const tables = [...document.querySelectorAll("table.sorts")];
    if (tables.length === 0) found.push("there is no table");
    for (const table of tables.filter((table) => table.tBodies[0].rows.length > 1)) {
      const heads = [...table.tHead.rows[0].cells];
      // A column of numbers that differ.
      const column = (at) => [...table.tBodies[0].rows].map((row) => row.cells[at].dataset.value);
      const sorts = (values) => new Set(values).size > 1 && values[0] !== undefined;
      const at = heads.findIndex((_, at) => sorts(column(at)));
      if (at < 0) continue;
      heads[at].querySelector("button")?.click();
      const sorted = column(at).map(Number);
      if (!sorted.every((value, i) => i === 0 || value <= sorted[i - 1])
        || heads[at].getAttribute("aria-sort") !== "descending") {
        found.push(`the table ${heads[at].textContent} does not sort`);
      }
    }
    const type = (field, text) => {
      field.value = text;
      field.dispatchEvent(new Event("input"));
    };
    for (const field of document.querySelectorAll(".wide > input")) {
      const rows = [...field.nextElementSibling.tBodies[0].rows];
      const first = rows[0].textContent;
      type(field, first.toUpperCase());
      const shown = rows.filter((row) => row.getBoundingClientRect().height > 0);
      if (!shown.includes(rows[0]) || shown.some((row) => row.textContent !== first)) {
        found.push(`the table of ${first} does not filter`);
      }
    }
    const graph = document.querySelector(".flame");
    if (graph) {
      const width = (element) => element.getBoundingClientRect().width;
      const frames = [...graph.querySelectorAll(".frame")];
      const last = frames.at(-1);
      const tools = graph.previousElementSibling;
      type(tools.querySelector("input"), last.title.split(/: | \(/)[0]);
      if (!last.classList.contains("found")) found.push("the graph does not search");
      last.click();
      if (width(last) < width(graph) - 2) found.push("the graph does not enlarge");
      const related = graph.nextElementSibling.querySelectorAll("li").length;
      if (related === 0) found.push("the graph has no callers");
      tools.querySelector("button").click();
      if (width(last) > width(graph) / 2) found.push("the graph does not become whole again");
    }
    return found;
  }
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  // A colour as red, green and blue.
  const rgb = (colour) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  // The relative luminance of WCAG 2.
  const luminance = (colour) => {
    const [r, g, b] = rgb(colour).map((value) => {
      const part = value / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const paper = getComputedStyle(document.body).backgroundColor;
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    const [page, view] = [root.scrollWidth, root.clientWidth];
    found.push(`it is ${page} pixels wide, wider than its window of ${view}`);
  }
  if (kind === "print" && luminance(paper) < 0.9) found.push("the paper is dark in print");
  for (const section of document.querySelectorAll("main > section")) {
    const title = section.querySelector("h2")?.textContent;
    if (section.querySelectorAll("figure svg, table, .missing, .card, .sum").length === 0) {
      found.push(`${title}: neither a plot nor a sentence`);
    }
  }
  for (const figure of document.querySelectorAll("figure.plot")) {
    const svg = figure.querySelector("svg");
    const box = svg?.getBoundingClientRect();
    if (!svg || box.width < 200 || box.height < 60) {
      found.push(`${name(figure)}: without a drawing`);
      continue;
    }
    const points = [...svg.querySelectorAll("circle, rect, path, polygon, polyline")].filter(
      (mark) => mark.getBoundingClientRect().width > 0 && mark.getAttribute("fill") !== "none"
        || mark.getAttribute("stroke")?.includes("--s"));
    if (points.length === 0) found.push(`${name(figure)}: has no points`);
    const marks = [...svg.querySelectorAll("[fill*='--s'], [stroke*='--s']")];
    for (const mark of marks) {
      const style = getComputedStyle(mark);
      const colour = mark.getAttribute("fill")?.includes("--s") ? style.fill : style.stroke;
      if (contrast(colour, paper) < 3) {
        found.push(`${name(figure)}: a series in ${colour} is faint on ${paper}`);
        break;
      }
    }
    const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim());
    if (texts.length < 4) found.push(`${name(figure)}: has no axes`);
    const boxes = texts.map((text) => text.getBoundingClientRect());
    texts.forEach((text, at) => {
      const own = boxes[at];
      const says = `${name(figure)}: "${text.textContent}"`;
      if (own.left < box.left - 0.5 || own.right > box.right + 0.5
        || own.top < box.top - 0.5 || own.bottom > box.bottom + 0.5) {
        found.push(`${says} is cut off`);
      }
      const scale = box.width / svg.viewBox.baseVal.width;
      const size = parseFloat(getComputedStyle(text).fontSize) * scale;
      if (size < 9) found.push(`${says} is too small: ${size.toFixed(1)} pixels`);
      if (contrast(getComputedStyle(text).fill, paper) < 4.5) found.push(`${says} is faint`);
      const over = boxes.findIndex((other, next) => next > at && own.left < other.right - 1
        && other.left < own.right - 1 && own.top < other.bottom - 3 && other.top < own.bottom - 3);
      if (over >= 0) found.push(`${says} lies over "${texts[over].textContent}"`);
    });
  }
  // Text of the page that its own box cuts off.
  const words = "h1, h2, h3, h4, p, li, dd, dt, figcaption, td, th";
  for (const element of document.querySelectorAll(words)) {
    const box = element.getBoundingClientRect();
    const inside = element.closest(".wide");
    if (box.width && !inside && (box.right > root.clientWidth + 0.5 || box.left < -0.5)) {
      found.push(`"${name(element)}" is cut off by the window`);
    }
    if (kind === "print" && inside && box.right > root.clientWidth + 0.5) {
      found.push(`"${name(element)}" is cut off in print`);
    }
  }
  return found;
}
