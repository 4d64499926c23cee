"use strict";
// The page of an evaluation: figures with their intervals, the comparison with the baseline, and signs of cheating.

const { result } = DATA;
const { baseline } = result;
const WHOLE = result.rows[0];
const THEIRS = Object.fromEntries((baseline?.rows || []).map((row) => [nameOf(row), row]));
const MINE = PALETTE[0],
  OTHER = PALETTE[9];
const plots = [];

function nameOf(row) {
  return [row.part || row.environment, row.kind].filter(Boolean).join(" · ");
}

const interval = (e, digits = 3) =>
  !e || e.mean === null
    ? "–"
    : e.low === null
      ? e.mean.toFixed(digits)
      : `${e.mean.toFixed(digits)} (${e.low.toFixed(digits)} to ${e.high.toFixed(digits)})`;
const points = (value) => `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)}`.replace("-", "−");

function headline() {
  const most = Object.keys(WHOLE.pass_at).at(-1);
  const shown = [
    figure("score", interval(WHOLE.score).split(" ")[0], `95%: ${bounds(WHOLE.score)}; ${WHOLE.score.tasks} tasks`),
  ];
  if (baseline) {
    const d = baseline.differences.all;
    shown.push(figure("against the baseline", d.mean === null ? "–" : points(d.mean), `points; ${told(d)}`));
  }
  if (result.attempts > 1) {
    shown.push(figure(`pass@${most}`, interval(WHOLE.pass_at[most]).split(" ")[0], `one of ${most} attempts passes`));
    shown.push(figure(`pass^${most}`, interval(WHOLE.pass_all[most]).split(" ")[0], `all ${most} attempts pass`));
  }
  shown.push(alarm("hack labels", WHOLE.labelled, `of ${number(WHOLE.scored)} episodes`, WHOLE.labelled > 0));
  if (WHOLE.public_gap) {
    const gap = WHOLE.public_gap;
    shown.push(alarm("public/hidden gap", number(gap.mean), `95%: ${bounds(gap)}`, gap.mean > 0.05));
  }
  shown.push(
    alarm(
      "errored",
      WHOLE.errored,
      `of ${number(WHOLE.planned)} episodes; in no figure`,
      WHOLE.errored > 0 || !result.complete,
    ),
    figure(
      "tokens sampled",
      number(result.spent.sampled_tokens),
      result.spent.usd === null ? `${number(result.spent.prompt_tokens)} read` : `${number(result.spent.usd)} USD`,
    ),
  );
  return shown;
}

const bounds = (e) => (e.low === null ? "not known" : `${e.low.toFixed(3)} to ${e.high.toFixed(3)}`);
const told = (d) => (d.low > 0 ? "better" : d.high < 0 ? "worse" : "can't tell");

function alarm(label, value, sub, bad) {
  const node = figure(label, value, sub);
  if (bad) node.querySelector(".value").classList.add("bad");
  return node;
}

function verdict() {
  const cards = [];
  if (baseline) {
    const d = baseline.differences.all;
    const tone = d.low > 0 ? "good" : d.high < 0 ? "bad" : "muted";
    cards.push(
      el(
        "div",
        { class: "card" },
        el("h3", {}, `Against ${baseline.name}`),
        el("p", { class: `sentence ${tone}` }, d.sentence),
      ),
    );
  }
  cards.push(cheating());
  if (!result.complete || Object.keys(result.errors).length) cards.push(faults());
  return cards;
}

/** Labels and the gap, beside the baseline's: a score that rises while these rise too is no better agent. */
function cheating() {
  const other = baseline?.rows[0];
  const share = (row, label) => `${row.labels[label] || 0} (${percent((row.labels[label] || 0) / row.scored)})`;
  const labels = [...new Set([...Object.keys(WHOLE.labels), ...Object.keys(other?.labels || {})])].sort();
  const rows = labels.map((label) => [label, share(WHOLE, label), ...(other ? [share(other, label)] : [])]);
  if (WHOLE.public_gap) {
    rows.push(["public/hidden gap", interval(WHOLE.public_gap), ...(other ? [interval(other.public_gap)] : [])]);
  }
  return el(
    "div",
    { class: "card" },
    el(
      "h3",
      {},
      "Signs of cheating",
      el(
        "span",
        { class: "muted small", style: "font-weight:400" },
        " · episodes with a hack label; and what the public test promised and the hidden ones did not keep",
      ),
    ),
    rows.length
      ? table(["", "this model", ...(other ? ["the baseline"] : [])], rows, [1, 2])
      : el("p", { class: "muted" }, "No episode carries a label."),
  );
}

function faults() {
  const rows = Object.entries(result.errors).map(([cause, count]) => [count, cause]);
  return el(
    "div",
    { class: "card" },
    el("h3", {}, "Infrastructure"),
    el(
      "p",
      { class: result.complete ? "muted" : "warn" },
      result.complete
        ? "Every episode was scored."
        : `${WHOLE.planned - WHOLE.scored} of ${WHOLE.planned} episodes are missing or errored, and are in no figure.`,
    ),
    rows.length ? table(["", "cause"], rows, [0]) : null,
  );
}

// Charts

function card(title, note, height, draw) {
  const plot = el("div", { class: "plot", style: `height:${height}px` });
  plots.push(() => draw(plot));
  return el(
    "div",
    { class: "card chart" },
    el("h3", {}, title, el("span", { class: "muted small", style: "font-weight:400" }, ` · ${note}`)),
    plot,
  );
}

/** A dot with its interval for each of `items` ({label, mean, low, high, text}), the first on top. */
function dots(items, name, shade, offset = 0) {
  const known = items.map((item, i) => ({ ...item, y: items.length - 1 - i + offset })).filter((i) => i.mean !== null);
  return {
    x: known.map((i) => i.mean),
    y: known.map((i) => i.y),
    name: plain(name),
    mode: "markers",
    marker: { color: shade, size: 9 },
    customdata: known.map((i) => `${plain(i.label)}: ${plain(i.text)}`),
    hovertemplate: "%{customdata}<extra>%{fullData.name}</extra>",
    error_x: {
      type: "data",
      symmetric: false,
      color: shade,
      thickness: 1.6,
      width: 5,
      array: known.map((i) => (i.high === null ? 0 : i.high - i.mean)),
      arrayminus: known.map((i) => (i.low === null ? 0 : i.mean - i.low)),
    },
  };
}

function dotLayout(items, xaxis) {
  const layout = plainLayout();
  return {
    ...layout,
    hovermode: "closest",
    showlegend: Boolean(baseline) && !xaxis.zeroline,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    margin: { l: 10, r: 14, t: 24, b: 30 },
    xaxis: { ...layout.xaxis, ...xaxis },
    yaxis: {
      ...layout.yaxis,
      tickvals: items.map((_, i) => items.length - 1 - i),
      ticktext: items.map((item) => plain(item.label)),
      range: [-0.6, items.length - 0.4],
      fixedrange: true,
    },
  };
}

function scores() {
  const item = (row) => ({ label: nameOf(row), ...row.score, text: `${interval(row.score)}, ${row.score.tasks} tasks` });
  const items = result.rows.map(item);
  const others = result.rows.map((row) => (THEIRS[nameOf(row)] ? item(THEIRS[nameOf(row)]) : { mean: null }));
  return card("Score", "95% intervals, clustered by task", 60 + 34 * items.length, (plot) =>
    Plotly.react(
      plot,
      [
        dots(items, result.model, MINE, baseline ? 0.13 : 0),
        ...(baseline ? [dots(others, baseline.name, OTHER, -0.13)] : []),
      ],
      dotLayout(items, { range: [-0.02, 1.02] }),
      PLOT_OPTIONS,
    ),
  );
}

function differences() {
  const items = Object.entries(baseline.differences).map(([label, d]) => ({
    label,
    mean: d.mean === null ? null : 100 * d.mean,
    low: d.low === null ? null : 100 * d.low,
    high: d.high === null ? null : 100 * d.high,
    text: d.sentence,
  }));
  return card("Difference from the baseline", "points, task by task, 95% intervals", 60 + 34 * items.length, (plot) =>
    Plotly.react(
      plot,
      [dots(items, "difference", MINE)],
      dotLayout(items, { zeroline: true, zerolinecolor: colour("muted"), zerolinewidth: 2 }),
      PLOT_OPTIONS,
    ),
  );
}

function distribution() {
  const bars = (values, name, shade) => ({
    type: "histogram",
    x: values,
    name: plain(name),
    marker: { color: shade },
    opacity: 0.8,
    xbins: { start: -0.05, end: 1.05, size: 0.1 },
    autobinx: DATA.scores.some((v) => v < 0 || v > 1),
    hovertemplate: "%{y} tasks at %{x}<extra>%{fullData.name}</extra>",
  });
  return card("Tasks by their score", `mean of ${result.attempts} attempts`, 260, (plot) => {
    const layout = plainLayout();
    Plotly.react(
      plot,
      [
        bars(DATA.scores, result.model, MINE),
        ...(baseline ? [bars(DATA.baselineScores, baseline.name, OTHER)] : []),
      ],
      {
        ...layout,
        barmode: "group",
        showlegend: Boolean(baseline),
        legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
        margin: { l: 44, r: 10, t: 24, b: 30 },
      },
      PLOT_OPTIONS,
    );
  });
}

function attemptsChart() {
  const ks = Object.keys(WHOLE.pass_at);
  const line = (of, name, shade) => ({
    x: ks.map(Number),
    y: ks.map((k) => of[k]?.mean),
    name,
    mode: "lines+markers",
    line: { color: shade, width: 2 },
    customdata: ks.map((k) => interval(of[k])),
    hovertemplate: "%{customdata}<extra>%{fullData.name}</extra>",
    error_y: {
      type: "data",
      symmetric: false,
      color: shade,
      thickness: 1.2,
      width: 4,
      array: ks.map((k) => (of[k]?.high ?? of[k]?.mean) - of[k]?.mean),
      arrayminus: ks.map((k) => of[k]?.mean - (of[k]?.low ?? of[k]?.mean)),
    },
  });
  return card("Attempts", "pass@k: one of k passes; pass^k: all of k pass", 260, (plot) => {
    const layout = plainLayout();
    Plotly.react(
      plot,
      [line(WHOLE.pass_at, "pass@k", PALETTE[2]), line(WHOLE.pass_all, "pass^k", PALETTE[1])],
      {
        ...layout,
        showlegend: true,
        legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
        margin: { l: 44, r: 10, t: 24, b: 34 },
        xaxis: { ...layout.xaxis, tickvals: ks.map(Number), title: { text: "k", font: { size: 11 } } },
        yaxis: { ...layout.yaxis, range: [-0.02, 1.05] },
      },
      PLOT_OPTIONS,
    );
  });
}

function figuresTable() {
  const most = Object.keys(WHOLE.pass_at).at(-1);
  const head = ["", "score, 95% interval", "reward", `pass@${most}`, `pass^${most}`, "tasks", "episodes", "errored"];
  head.push("truncated", "labelled", "turns", "tool calls", "tokens", "seconds");
  const rows = result.rows.map((row, i) => [
    el("span", { style: `padding-left:${i === 0 ? 0 : row.part || row.kind ? 28 : 14}px` }, row.kind || nameOf(row)),
    interval(row.score),
    interval(row.reward).split(" ")[0],
    interval(row.pass_at[most]).split(" ")[0],
    interval(row.pass_all[most]).split(" ")[0],
    row.score.tasks,
    row.scored,
    row.errored || "–",
    row.truncated || "–",
    row.labelled || "–",
    number(row.turns, 1),
    number(row.tool_calls, 1),
    number(row.sampled_tokens, 1),
    number(result.spent.seconds[nameOf(row)], 2),
  ]);
  return el(
    "div",
    { class: "card scroll", style: "margin-top:14px" },
    el("h3", {}, "All figures"),
    table(head, rows, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]),
  );
}

function makeResults() {
  byId("figures").append(...headline());
  byId("verdict").append(...verdict());
  byId("charts").append(scores());
  if (baseline) byId("charts").append(differences());
  byId("charts").append(distribution());
  if (Object.keys(WHOLE.pass_at).length > 1) byId("charts").append(attemptsChart());
  byId("tables").append(figuresTable());
}

const drawPlots = () => plots.forEach((draw) => draw());

function makeAbout() {
  const card = ({ title, rows }) =>
    el(
      "div",
      { class: "card" },
      el("h3", { style: "margin-bottom:6px" }, title),
      table(
        [],
        rows.map(([name, value]) => [el("span", { class: "muted" }, name), value]),
      ),
    );
  byId("tab-about").append(el("div", { class: "columns" }, DATA.about.map(card)));
}

start({ results: makeResults, episodes: makeEpisodes, about: makeAbout }, { results: drawPlots }, { results: drawPlots });
