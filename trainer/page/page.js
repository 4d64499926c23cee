"use strict";
// What every part of the page uses. Text from a run only ever becomes a text node: no markup is made of it.

const DATA = JSON.parse(document.getElementById("data").textContent);
const PALETTE = [
  "#3b7dd8",
  "#e08a1e",
  "#2e9e6b",
  "#d64550",
  "#8a63d2",
  "#1ba3a8",
  "#b5651d",
  "#c2478f",
  "#7f8c2c",
  "#64748b",
];
const MINUTE = 60,
  HOUR = 3600,
  DAY = 86400;

const byId = (id) => document.getElementById(id);

/** An element with properties ("class", "on...", attributes) and children (nodes, or values shown as text). */
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value;
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(
    ...children
      .flat()
      .filter((child) => child !== null && child !== undefined)
      .map(asNode),
  );
  return node;
}

const asNode = (value) => (value instanceof Node ? value : document.createTextNode(String(value)));

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : digits });
}

const percent = (share) =>
  Number.isFinite(share) ? `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%` : "–";

function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < MINUTE) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min ${Math.round(seconds % MINUTE)} s`;
  if (seconds < DAY) return `${Math.floor(seconds / HOUR)} h ${Math.round((seconds % HOUR) / MINUTE)} min`;
  return `${Math.floor(seconds / DAY)} d ${Math.round((seconds % DAY) / HOUR)} h`;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;"); // Plotly reads tags
const PLOT_OPTIONS = { displaylogo: false, responsive: true, displayModeBar: false, doubleClick: "reset" };

/** What all of Plotly's charts look like. */
function plainLayout() {
  const ticks = {
    gridcolor: colour("grid"),
    zerolinecolor: colour("line"),
    linecolor: colour("line"),
    tickfont: { size: 11, color: colour("muted") },
    automargin: true,
  };
  return {
    margin: { l: 44, r: 10, t: 6, b: 34 },
    showlegend: false,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("ink"), size: 12 },
    hoverlabel: {
      bgcolor: colour("card"),
      bordercolor: colour("line"),
      font: { color: colour("ink") },
      namelength: 40,
    },
    xaxis: ticks,
    yaxis: ticks,
  };
}

function figure(label, value, sub = "") {
  return el(
    "div",
    { class: "figure" },
    el("div", { class: "label" }, label),
    el("div", { class: "value" }, value),
    el("div", { class: "sub" }, sub),
  );
}

/** A table whose cells are text or nodes; `numeric` are the columns to align to the right. */
function table(head, rows, numeric = []) {
  const kind = (i) => (numeric.includes(i) ? { class: "number" } : {});
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      row.map((cell, i) => el("td", kind(i), cell)),
    ),
  );
  const top = head.length
    ? el(
        "thead",
        {},
        el(
          "tr",
          {},
          head.map((cell, i) => el("th", kind(i), cell)),
        ),
      )
    : null;
  return el("table", {}, top, el("tbody", {}, body));
}

/** Make a row of buttons behave as one choice; `change(value)` is called with the chosen button's value. */
function choice(id, value, change) {
  const buttons = [...byId(id).querySelectorAll("button")];
  const press = (chosen) => buttons.forEach((b) => b.setAttribute("aria-pressed", b.dataset.value === chosen));
  buttons.forEach((b) =>
    b.addEventListener("click", () => {
      press(b.dataset.value);
      change(b.dataset.value);
    }),
  );
  press(value);
}

// What the reader has set survives a reload, where the browser lets it.
function recall(name, fallback) {
  try {
    return sessionStorage.getItem(`${DATA.name}/${name}`) ?? fallback;
  } catch {
    return fallback;
  }
}
function keep(name, value) {
  try {
    sessionStorage.setItem(`${DATA.name}/${name}`, value);
  } catch {
    /* not allowed for this page */
  }
}

function tip(text, event) {
  const box = byId("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 8))}px`;
  box.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}
