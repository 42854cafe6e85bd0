"use strict";
// The interactive parts of the page. Names come from users: they become text nodes, never HTML.

const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

const unpack = async (id) => {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};

const collator = new Intl.Collator(undefined, { numeric: true });
const percent = (thousandths) => `${(thousandths / 10).toFixed(1)}%`;
const announce = (name, detail) => document.dispatchEvent(new CustomEvent(name, { detail }));

// Light and dark: the system's choice until the button is pressed; paper is always light.

const root = document.documentElement;
const themeButton = document.getElementById("theme");
const darkSystem = matchMedia("(prefers-color-scheme: dark)");

const setTheme = (dark) => {
  root.dataset.theme = dark ? "dark" : "light";
  themeButton.textContent = dark ? "Light" : "Dark";
  themeButton.setAttribute("aria-pressed", dark);
  charts.forEach((draw) => draw());
};

// Charts.

const charts = new Map();

const colored = (value, styles) => {
  if (value === "--shades") return [[0, styles.getPropertyValue("--panel")], [1, styles.getPropertyValue("--shade")]];
  if (typeof value === "string" && value.startsWith("--")) return styles.getPropertyValue(value);
  if (Array.isArray(value)) return value.map((one) => colored(one, styles));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, colored(one, styles)]));
};

const drawChart = (place, { traces, layout, height }) => {
  const draw = () => {
    const styles = getComputedStyle(root);
    const [paper, ink, line] = ["--paper", "--ink", "--line"].map((name) => styles.getPropertyValue(name));
    const axis = { automargin: true, fixedrange: true, gridcolor: line, zerolinecolor: line, linecolor: line };
    const { xaxis, yaxis, ...rest } = colored(layout, styles);
    for (const { title } of [xaxis, yaxis]) title && (title.standoff = 10);
    Plotly.react(place, colored(traces, styles), {
      height, font: { family: "inherit", size: 13, color: ink }, paper_bgcolor: "transparent", plot_bgcolor: "transparent",
      margin: { l: 50, r: 12, t: 30, b: 40 }, legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" },
      hoverlabel: { bgcolor: paper, bordercolor: line, font: { color: ink }, align: "left", namelength: -1 },
      xaxis: { ...axis, showgrid: false, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
    }, { displayModeBar: false, responsive: true });
  };
  charts.set(place, draw);
  draw();
};

// A chart is drawn when it comes near the view, or is printed: a page may have many.
const waiting = new Map();
const drawNow = (place) => {
  const chart = waiting.get(place);
  waiting.delete(place);
  nearby.unobserve(place);
  drawChart(place, chart);
};
const nearby = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawNow(entry.target)),
  { rootMargin: "500px" },
);
const chartBlock = (place, chart) => {
  waiting.set(place, chart);
  nearby.observe(place);
};

// Tables that sort and that can be searched.

const numberIn = (text) => {
  const found = /^\s*([+−-]?)([\d,]*\.?\d+)/.exec(text);
  return found ? Number(found[2].replaceAll(",", "")) * (found[1] && found[1] !== "+" ? -1 : 1) : NaN;
};

const sortable = (table) => {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const texts = [...body.rows].map((row) => row.cells[column].textContent.trim()).filter((text) => text && text !== "–");
    const numeric = texts.length > 0 && texts.every((text) => !Number.isNaN(numberIn(text)));
    const button = make("button", { type: "button" }, ...heading.childNodes);
    heading.append(button);
    if (numeric) [heading, ...[...body.rows].map((row) => row.cells[column])].forEach((cell) => cell.classList.add("number"));
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === (numeric ? "descending" : "ascending") !== numeric;
      const value = (row) => row.cells[column].textContent.trim();
      const compare = numeric
        ? (a, b) => (numberIn(value(a)) - numberIn(value(b))) * (down ? -1 : 1)
        : (a, b) => collator.compare(value(a), value(b)) * (down ? -1 : 1);
      const blank = (row) => numeric && Number.isNaN(numberIn(value(row)));
      const rows = [...body.rows];
      body.append(...rows.filter((row) => !blank(row)).sort(compare), ...rows.filter(blank));
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  });
};

const tableBlock = (place) => {
  const rows = [...place.querySelectorAll("tbody tr")];
  const search = place.querySelector("input[type=search]");
  search?.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
};

// The slider and the list of choices; the table of nodes listens to their events.

const thresholdBlock = (place, sentences) => {
  const slider = place.querySelector("input");
  const update = () => {
    place.querySelector("output").textContent = `${slider.value}%`;
    place.querySelector(".answer").textContent = sentences[slider.value];
    announce("threshold", Number(slider.value));
  };
  slider.addEventListener("input", update);
  update();
};

const choicesBlock = (place) => {
  const list = place.querySelector("select");
  const update = () => {
    place.querySelectorAll(":scope > .choice").forEach((choice, number) => (choice.hidden = number !== Number(list.value)));
    announce("choice", Number(list.value));
  };
  list.addEventListener("change", update);
  update();
};

// The table of nodes. Columns are lists: id, predicted, evaluated (the class by the evaluation model), confidence (in thousandths), top (class and thousandths in turn,
// the likeliest first), label, part, features (0 or 1), featureHops and labelHops (-1: no path), neighbors (class and
// number in turn), degree, sets: for each choice of error rate, how many of the likeliest classes are in the set; and
// reasons (number in reasonNames and hundredths in turn), where reasonNames are pairs of source and name.

const ROW = 34;
const PARTS = ["", "training", "validation", "held out"];

const nodesBlock = (place, data) => {
  const { id, classes, predicted, evaluated, confidence, top, label, part, features, featureHops, labelHops, neighbors, degree, sets, reasonNames, reasons } = data;
  let threshold = 900, choice = 0, shown = [], active = -1, sorted = { column: "confidence", down: false }, ranks = null;
  const pairs = (flat) => flat.filter((_, n) => n % 2 === 0).map((first, n) => [first, flat[2 * n + 1]]);
  const hops = (count) => (count < 0 ? "no path" : String(count));
  const setOf = (row) => {
    const size = sets[choice][row];
    const names = pairs(top[row]).slice(0, size).map(([name]) => classes[name]);
    return names.length < size ? `${size} labels` : names.join(" or ");
  };
  const neighborLabels = (row) => pairs(neighbors[row]).map(([name, count]) => `${classes[name]} × ${count}`).join(", ");
  const reasonsOf = (row) => {
    const texts = { node: (name) => name, neighborhood: (name) => `${name} in its neighborhood`, labels: (name) => name };
    const features = [], through = [];
    for (const [number, value] of pairs(reasons[row])) {
      const [source, name] = reasonNames[number];
      if (source === "neighbor") through.push(`${name} (${value}%)`);
      else features.push(`${texts[source](name)} (${value < 0 ? "−" : "+"}${(Math.abs(value) / 100).toFixed(2)})`);
    }
    return [
      ...(features.length ? [`Largest contributions, in log-odds of this label: ${features.join(", ")}.`] : []),
      ...(through.length ? [`Most evidence arrives through the neighbors ${through.join(", ")}.`] : []),
    ];
  };
  const guaranteed = sets.length > 0;
  const columns = [
    ["id", "Node", (row) => id[row]],
    ["predicted", "Label", (row) => classes[predicted[row]]],
    ["confidence", "Confidence", (row) => percent(confidence[row]), "7.7rem"],
    ...(guaranteed ? [["set", "Prediction set", setOf]] : []),
    ["label", "Known label", (row) => (label[row] < 0 ? "" : `${classes[label[row]]} (${PARTS[part[row]] || "not used"})`)],
    ["features", "Features", (row) => (features[row] ? "known" : "missing"), "6.5rem"],
    ["featureHops", "Hops to features", (row) => hops(featureHops[row]), "6.5rem"],
    ["labelHops", "Hops to a label", (row) => hops(labelHops[row]), "5.8rem"],
    ["neighbors", "Neighbors' labels", neighborLabels],
  ];
  const byId = () => {
    if (!ranks) {
      ranks = new Int32Array(id.length);
      [...id.keys()].sort((a, b) => collator.compare(id[a], id[b])).forEach((row, rank) => (ranks[row] = rank));
    }
    return ranks;
  };
  const far = (list) => (row) => (list[row] < 0 ? Infinity : list[row]);
  const keys = {
    id: (row) => byId()[row], predicted: (row) => predicted[row], confidence: (row) => confidence[row],
    set: (row) => sets[choice][row], label: (row) => label[row] * 4 + part[row], features: (row) => features[row],
    featureHops: far(featureHops), labelHops: far(labelHops), neighbors: (row) => neighbors[row].length * 1e6 + degree[row],
  };
  const unknown = (row) => label[row] < 0;
  const kinds = {
    "all nodes": () => true,
    "no known label": unknown,
    "to trust (no known label, at or above the threshold)": (row) => unknown(row) && confidence[row] >= threshold,
    "to review (no known label, below the threshold)": (row) => unknown(row) && confidence[row] < threshold,
    "features missing": (row) => !features[row],
    "held out and wrong": (row) => part[row] === 3 && label[row] !== evaluated[row],
    ...(guaranteed && {
      "prediction set: one label": (row) => sets[choice][row] === 1,
      "prediction set: several labels": (row) => sets[choice][row] > 1,
    }),
  };
  const options = (names) => names.map((name, value) => make("option", { value }, name));
  const find = make("input", { type: "search", autocomplete: "off", placeholder: "part of an id" });
  const kind = make("select", {}, ...options(Object.keys(kinds)));
  const named = make("select", {}, make("option", { value: "" }, "any label"), ...options(classes));
  const counted = make("p", { className: "note" });
  counted.setAttribute("aria-live", "polite");
  const headings = columns.map(([name, title, , width]) => {
    const button = make("button", { type: "button" }, title);
    button.addEventListener("click", () => {
      sorted = { column: name, down: sorted.column === name && !sorted.down };
      update();
    });
    return make("th", { scope: "col", style: width ? `width:${width}` : "" }, button);
  });
  const body = make("tbody");
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...headings)), body);
  const view = make("div", { className: "view", tabIndex: 0, role: "group", ariaLabel: "Nodes; arrow keys and Enter open the reasons for a label" }, table);
  const why = make("div", { className: "control why", hidden: true });
  why.setAttribute("aria-live", "polite");

  const spacer = (rows) => make("tr", { className: "spacer", ariaHidden: "true" }, make("td", { colSpan: columns.length, style: `height:${rows * ROW}px` }));
  const paint = (from, to) => {
    const rows = shown.slice(from, to).map((row, number) => {
      const cells = columns.map(([, , text], column) => make(column ? "td" : "th", { textContent: text(row), title: text(row) }));
      const made = make("tr", { className: "choosable", ariaRowIndex: from + number + 2 }, ...cells);
      made.classList.toggle("chosen", from + number === active);
      made.addEventListener("click", () => choose(from + number));
      return made;
    });
    body.replaceChildren(spacer(from), ...rows, spacer(Math.max(0, shown.length - to)));
  };
  const scroll = () => {
    const first = Math.max(0, Math.floor(view.scrollTop / ROW) - 10);
    paint(first, first + Math.ceil(view.clientHeight / ROW) + 20);
  };
  const update = () => {
    const idPart = find.value.toLowerCase(), test = Object.values(kinds)[kind.value], name = named.value;
    const key = keys[sorted.column], sign = sorted.down ? -1 : 1;
    const matches = [];
    for (let row = 0; row < id.length; row++) {
      if (test(row) && (name === "" || predicted[row] === Number(name)) && (!idPart || id[row].toLowerCase().includes(idPart))) matches.push(row);
    }
    shown = matches.sort((a, b) => (key(a) < key(b) ? -sign : key(a) > key(b) ? sign : a - b));
    headings.forEach((heading, column) => {
      if (columns[column][0] === sorted.column) heading.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    });
    table.setAttribute("aria-rowcount", shown.length + 1);
    counted.textContent = `${shown.length.toLocaleString("en")} of ${id.length.toLocaleString("en")} nodes`;
    if (id.length < data.total) {
      counted.textContent += `; those with the least confidence, of ${data.total.toLocaleString("en")}: predictions.csv has all`;
    }
    active = -1;
    view.scrollTop = 0;
    scroll();
  };
  const choose = (number) => {
    active = Math.max(0, Math.min(shown.length - 1, number));
    const row = shown[active];
    if (row === undefined) return;
    const labeled = pairs(neighbors[row]).reduce((sum, [, count]) => sum + count, 0);
    const bars = pairs(top[row]).map(([name, share]) => make("div", { className: "bar" },
      make("span", { title: classes[name] }, classes[name]),
      make("span", { className: "track" }, make("div", { style: `width:${share / 10}%` })),
      make("span", {}, percent(share))));
    const rest = classes.length - bars.length;
    const sentences = [
      features[row] ? "Its own features are known."
        : featureHops[row] < 0 ? "It has no features, and no path to a node with features: its label is a fallback."
        : `It has no features; the nearest node with features is ${featureHops[row]} ${featureHops[row] === 1 ? "hop" : "hops"} away.`,
      labelHops[row] < 0 ? "It has no path to a training node."
        : labelHops[row] === 0 ? "It is a training node."
        : `The nearest training node is ${labelHops[row]} ${labelHops[row] === 1 ? "hop" : "hops"} away.`,
      ...(part[row] === 3 && evaluated[row] !== predicted[row] ? [`While it was held out, its label was ${classes[evaluated[row]]}.`] : []),
      degree[row] === 0 ? "It has no neighbors."
        : `Of its ${degree[row]} ${degree[row] === 1 ? "neighbor" : "neighbors"}, ${labeled} ${labeled === 1 ? "has" : "have"} a known label${labeled ? `: ${neighborLabels(row)}` : ""}.`,
      ...reasonsOf(row),
    ];
    why.replaceChildren(make("h3", {}, `${id[row]}: ${classes[predicted[row]]}`), ...bars,
      ...(rest > 0 ? [make("p", { className: "note" }, `and ${rest} more ${rest === 1 ? "class" : "classes"} below 0.1% or not among the ten likeliest`)] : []),
      make("p", {}, sentences.join(" ")));
    why.hidden = false;
    if (active * ROW < view.scrollTop) view.scrollTop = active * ROW;
    const end = table.tHead.offsetHeight + (active + 1) * ROW;
    if (end > view.scrollTop + view.clientHeight) view.scrollTop = end - view.clientHeight;
    scroll();
  };
  view.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Enter: active < 0 ? 1 : 0 }[event.key];
    if (step === undefined || event.target !== view) return;
    event.preventDefault();
    choose(active + step);
  });
  view.addEventListener("scroll", scroll, { passive: true });
  addEventListener("resize", scroll);
  addEventListener("beforeprint", () => paint(0, 100));
  addEventListener("afterprint", scroll);
  find.addEventListener("input", update);
  kind.addEventListener("change", update);
  named.addEventListener("change", update);
  document.addEventListener("threshold", ({ detail }) => {
    threshold = detail * 10;
    update();
  });
  document.addEventListener("choice", ({ detail }) => {
    choice = detail;
    update();
  });
  const download = document.getElementById("download");
  if (download) {
    // A spreadsheet must not run a name as a formula.
    const cell = (text) => `"${String(text).replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
    download.hidden = false;
    download.addEventListener("click", () => {
      const rows = [...id.keys()].filter((row) => unknown(row) && confidence[row] < threshold);
      rows.sort((a, b) => confidence[a] - confidence[b]);
      const lines = rows.map((row) => [cell(id[row]), cell(classes[predicted[row]]), confidence[row] / 1000].join(","));
      const href = URL.createObjectURL(new Blob([["id,predicted,confidence", ...lines, ""].join("\n")], { type: "text/csv" }));
      make("a", { href, download: "review.csv" }).click();
    });
  }
  place.append(
    make("div", { className: "filters" }, make("label", {}, "Find a node", find), make("label", {}, "Show", kind), make("label", {}, "Label", named)),
    counted, make("p", { className: "note" }, "Click a row to see the reasons for its label; or select the table with the Tab key, then press Enter and the arrow keys."), view, why);
  update();
};

const start = async () => {
  setTheme(darkSystem.matches);
  darkSystem.addEventListener("change", ({ matches }) => setTheme(matches));
  themeButton.addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  let before = false;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme === "dark";
    setTheme(false);
    [...waiting.keys()].filter((place) => place.offsetParent).forEach(drawNow);
  });
  addEventListener("afterprint", () => setTheme(before));
  document.querySelectorAll("table:has(thead)").forEach(sortable);
  const [data, plotly] = await Promise.all([unpack("data").then(JSON.parse), unpack("plotly")]);
  const blocks = { table: tableBlock, threshold: thresholdBlock, choices: choicesBlock, nodes: nodesBlock, chart: chartBlock };
  const places = [...document.querySelectorAll("[data-kind]")];
  const begin = (place) => blocks[place.dataset.kind](place, data[place.dataset.block]);
  // The table of nodes first: it listens to the others. Plotly is large: what needs no chart comes before it.
  const needs = (place) => place.dataset.kind === "chart";
  places.filter((place) => place.dataset.kind === "nodes").forEach(begin);
  places.filter((place) => place.dataset.kind !== "nodes" && !needs(place)).forEach(begin);
  await new Promise((resolve) => setTimeout(resolve));
  document.head.append(make("script", { textContent: plotly }));
  places.filter(needs).forEach(begin);
  root.dataset.ready = "true";
};

start();
