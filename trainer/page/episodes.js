"use strict";
// The episode reader: a list to filter, sort and walk through, and beside it one episode, down to its tokens.

const LINES = DATA.episodes.lines;
const SHOWN_AT_FIRST = 300;
const SORTS = {
  newest: ["newest first", (a, b) => b.group - a.group || b.member - a.member],
  oldest: ["oldest first", (a, b) => a.group - b.group || a.member - b.member],
  best: ["highest reward", (a, b) => rank(b) - rank(a)],
  worst: ["lowest reward", (a, b) => rank(a) - rank(b)],
  position: ["data position", (a, b) => a.position - b.position || a.attempt - b.attempt || a.member - b.member],
  longest: ["most sampled tokens", (a, b) => b.sampled - a.sampled],
  slowest: ["longest time", (a, b) => b.wall_s - a.wall_s],
};
const rank = (line) => (line.reward === null ? -Infinity : line.reward);

let matching = [],
  selected = null,
  limit = SHOWN_AT_FIRST;

function bodyOf(line) {
  if (!line.body) line.body = JSON.parse(byId(`episode-${line.id}`).textContent);
  return line.body;
}

// Filters

const distinct = (of) => [...new Set(LINES.flatMap(of))].filter((v) => v !== "").sort();

function select(name, label, options, size) {
  return el(
    "label",
    { class: size },
    label,
    el(
      "select",
      { name, onchange: refilter },
      options.map(([value, text]) => el("option", { value }, text)),
    ),
  );
}

function range(name, label) {
  const field = (end, hint) =>
    el("input", {
      name: `${name}-${end}`,
      type: "number",
      step: "any",
      placeholder: hint,
      "aria-label": `${label}: ${hint}`,
      oninput: refilter,
    });
  return el("label", {}, label, el("span", { class: "pair" }, field("from", "from"), field("to", "to")));
}

function makeFilters() {
  const any = (values) => [["", "any"], ...values.map((v) => [v, v])];
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").append(
    el(
      "label",
      { class: "whole" },
      "messages, errors or labels contain",
      el("input", { name: "text", type: "search", oninput: refilter }),
    ),
    select("env", "environment", any(distinct((l) => [l.env])), "half"),
    select("kind", "kind", any(distinct((l) => [l.kind])), "half"),
    select("purpose", "played for", [
      ["", "any"],
      ["train", "training"],
      ["eval", "evaluation"],
    ]),
    select("status", "status", any(distinct((l) => [l.status]))),
    select("label", "label", [
      ["", "any"],
      ["labelled", "has one"],
      ["stale", "dropped as stale"],
      ...distinct((l) => l.labels).map((label) => [`=${label}`, label]),
    ]),
    range("reward", "reward"),
    range("step", "step (weights)"),
    range("position", "data position"),
    select(
      "sort",
      "order",
      Object.entries(SORTS).map(([value, [text]]) => [value, text]),
      "whole",
    ),
  );
  for (const [name, value] of Object.entries(JSON.parse(recall("filters", "{}")))) {
    const field = byId("filters").elements[name];
    if (field?.options && ![...field.options].some((option) => option.value === value)) continue;
    if (field) field.value = value;
  }
}

function contains(line, needle) {
  if (!needle) return true;
  line.haystack ??= JSON.stringify([
    line.labels,
    bodyOf(line).error,
    bodyOf(line).messages.map((m) => [m.content, m.name, m.calls]),
  ]).toLowerCase();
  return line.haystack.includes(JSON.stringify(needle.toLowerCase()).slice(1, -1));
}

function accepts(filter, line) {
  const between = (name, low, high) =>
    (filter[`${name}-from`] === "" || (high !== null && high >= Number(filter[`${name}-from`]))) &&
    (filter[`${name}-to`] === "" || (low !== null && low <= Number(filter[`${name}-to`])));
  const { label } = filter;
  const labelled =
    label === "labelled"
      ? line.labels.length > 0
      : label === "stale"
        ? line.stale
        : line.labels.includes(label.slice(1));
  return (
    ["env", "kind", "purpose", "status"].every((name) => filter[name] === "" || line[name] === filter[name]) &&
    (label === "" || labelled) &&
    between("reward", line.reward, line.reward) &&
    between("step", line.oldest, line.newest) &&
    between("position", line.position, line.position) &&
    contains(line, filter.text)
  );
}

function refilter() {
  const filter = Object.fromEntries(new FormData(byId("filters")));
  keep("filters", JSON.stringify(filter));
  matching = LINES.filter((line) => accepts(filter, line)).sort(SORTS[filter.sort][1]);
  limit = SHOWN_AT_FIRST;
  listLines();
}

// The list

function tags(line) {
  const tag = (text, kind = "") => el("span", { class: `tag ${kind}` }, text);
  return [
    line.purpose === "eval" ? tag("eval") : null,
    line.status === "errored" ? tag("errored", "bad") : line.status === "truncated" ? tag("truncated", "warn") : null,
    line.stale ? tag("dropped as stale", "warn") : null,
    ...line.labels.map((label) => tag(label, "bad")),
  ];
}

const versions = (line) =>
  line.oldest === null ? "–" : line.oldest === line.newest ? `${line.oldest}` : `${line.oldest}–${line.newest}`;
const shade = (line) => (line.reward === null ? "muted" : line.reward > 0.5 ? "good" : line.reward <= 0 ? "bad" : "");

function lineNode(line) {
  return el(
    "div",
    {
      class: "line",
      role: "option",
      id: `line-${line.id}`,
      "aria-selected": line === selected,
      onclick: () => openEpisode(line),
    },
    el("span", { class: `reward ${shade(line)}` }, line.reward === null ? "–" : line.reward.toFixed(2)),
    el("span", { class: "what" }, [line.env, line.kind].filter(Boolean).join(" · ")),
    el(
      "span",
      { class: "more" },
      `step ${versions(line)} · position ${line.position}${line.attempt ? ` (attempt ${line.attempt + 1})` : ""} · ` +
        `${line.turns} turns · ${number(line.sampled)} tokens`,
      tags(line),
    ),
  );
}

function listLines() {
  byId("matches").textContent = `${number(matching.length)} of the ${number(LINES.length)} episodes on this page`;
  byId("lines").replaceChildren(...matching.slice(0, limit).map(lineNode));
  if (matching.length > limit) {
    byId("lines").append(
      el(
        "button",
        {
          onclick: () => {
            limit *= 4;
            listLines();
          },
        },
        `show ${number(Math.min(matching.length - limit, 3 * limit))} more`,
      ),
    );
  }
}

function walk(by) {
  if (!matching.length) return;
  const at = matching.indexOf(selected);
  openEpisode(matching[Math.max(0, Math.min(matching.length - 1, at + by))]);
}

function openEpisode(line) {
  byId(selected ? `line-${selected.id}` : "lines")?.setAttribute("aria-selected", false);
  selected = line;
  const node = byId(`line-${line.id}`);
  node?.setAttribute("aria-selected", true);
  node?.scrollIntoView({ block: "nearest" });
  history.replaceState(null, "", `#episodes/${line.id}`);
  byId("reader").replaceChildren(...reading(line, bodyOf(line)));
  byId("reader").scrollTop = 0;
}

// One episode

function facts(pairs) {
  return el(
    "div",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== null && value !== "")
      .map(([name, value]) => el("span", {}, el("span", { class: "muted" }, `${name} `), el("b", {}, value))),
  );
}

function reading(line, body) {
  const counts = Object.entries(body.counts)
    .map(([name, count]) => `${name} ${count}`)
    .join(", ");
  const heading = el(
    "h2",
    { style: "margin:0" },
    `${line.env} #${line.index}`,
    line.kind ? ` · ${line.kind}` : "",
    tags(line),
  );
  return [
    heading,
    facts([
      ["reward", line.reward === null ? "none" : number(line.reward)],
      ["status", line.status],
      ["drawn with weights", versions(line)],
      ["data position", `${number(line.position)}${line.attempt ? `, attempt ${line.attempt + 1}` : ""}`],
      ["split", line.split],
      ["turns", line.turns],
      ["sampled tokens", number(line.sampled)],
      ["took", duration(line.wall_s)],
      ["worker", line.worker],
      ["tools", counts],
      ["retries", body.retries || ""],
      ["isolation", body.isolation],
      ["temperature", body.sampling.temperature],
    ]),
    body.error ? el("div", { class: "error bad" }, body.error) : null,
    mates(line),
    Object.keys(body.components).length ? components(body) : null,
    el("h3", { style: "margin-top:16px" }, "Messages"),
    body.messages.length ? body.messages.map(messageNode) : el("p", { class: "muted" }, "There are none."),
    tokensPart(body),
  ]
    .flat()
    .filter(Boolean);
}

function mates(line) {
  if (line.rewards.length < 2) return null;
  const scored = line.rewards.filter((r) => r !== null);
  const average = scored.reduce((a, b) => a + b, 0) / scored.length;
  return el(
    "div",
    { class: "mates" },
    el("span", { class: "muted small" }, "group:"),
    line.rewards.map((reward, member) => {
      const text = reward === null ? "errored" : number(reward, 2);
      const mate = LINES.find((l) => l.group === line.group && l.member === member);
      const current = member === line.member ? "true" : null;
      return mate
        ? el("button", { "aria-current": current, onclick: () => openEpisode(mate) }, text)
        : el("span", { class: "mate", title: "not on this page" }, text);
    }),
    el("span", { class: "muted small" }, scored.length ? `mean ${number(average)}` : ""),
  );
}

function components(body) {
  return el(
    "div",
    { class: "facts" },
    el("span", { class: "muted" }, "reward components:"),
    Object.entries(body.components).map(([name, value]) => el("span", {}, `${name} `, el("b", {}, number(value)))),
  );
}

function callNode(call) {
  return el(
    "div",
    { class: "call mono" },
    `→ ${call.name || "(no name)"} ${call.arguments}`,
    call.error ? el("div", { class: "bad" }, call.error) : null,
  );
}

function messageNode(message) {
  return el(
    "div",
    { class: "message", style: `--role: var(--${message.role})` },
    el("span", { class: "role" }, message.role, message.name ? ` · ${message.name}` : ""),
    el("pre", {}, message.content),
    message.calls.map(callNode),
  );
}

function makeEpisodes() {
  byId("episodes-note").textContent = DATA.episodes.note;
  if (!LINES.length) {
    byId("tab-episodes").replaceChildren(el("div", { class: "card empty" }, DATA.episodes.note));
    return;
  }
  makeFilters();
  refilter();
  document.addEventListener("keydown", (event) => {
    if (
      byId("tab-episodes").hidden ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      event.target.matches("input, select")
    )
      return;
    const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (by && !byId("reader").contains(event.target)) {
      walk(by);
      event.preventDefault();
    }
  });
}
