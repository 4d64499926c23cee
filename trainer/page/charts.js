"use strict";
// The curves: small charts in groups, by step or by elapsed time.

const LOG_TICKS = [-3, -2, -1, 0, 1, 2, 3].flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`)));

let axis = recall("axis", "step");
let smooth = Number(recall("smooth", STEPS.length > 40 ? 10 : 1));
const drawn = [];

function timeUnit() {
  const last = (COLUMNS["time/elapsed_s"] || []).at(-1) || 0;
  return last > 3 * HOUR ? [HOUR, "hours"] : last > 5 * MINUTE ? [MINUTE, "minutes"] : [1, "seconds"];
}

const xs = () => (axis === "step" ? STEPS : COLUMNS["time/elapsed_s"].map((s) => s / timeUnit()[0]));

/** Exponential moving average over about `span` steps, without the early bias towards 0. */
function averaged(values, span) {
  const keepShare = 1 - 2 / (span + 1);
  let sum = 0,
    weight = 0;
  return values.map((v) => {
    if (v === null) return null;
    sum = keepShare * sum + (1 - keepShare) * v;
    weight = keepShare * weight + (1 - keepShare);
    return sum / weight;
  });
}

function lineTraces({ key, label }, colourOf, chart) {
  const y = COLUMNS[key];
  const base = {
    x: xs(),
    mode: STEPS.length < 3 ? "lines+markers" : "lines",
    name: plain(label),
    hovertemplate: "%{y:.4~g}<extra>%{fullData.name}</extra>",
  };
  const colored = { line: { color: colourOf, width: 2 }, marker: { color: colourOf } };
  if (chart.stack) {
    const values = smooth > 1 ? averaged(y, smooth) : y;
    return [{ ...base, y: values, stackgroup: "one", line: { color: colourOf, width: 1 } }];
  }
  if (smooth <= 1 || key.endsWith("max") || key.startsWith("groups/dropped")) return [{ ...base, ...colored, y }];
  return [
    { ...base, y, line: { color: colourOf, width: 1 }, opacity: 0.2, hoverinfo: "skip", hovertemplate: null },
    { ...base, ...colored, y: averaged(y, smooth) },
  ];
}

function heldOutTrace([env, kind], colourOf) {
  const points = DATA.curves.evaluations.filter((p) => p.env === env && p.kind === kind);
  const unit = timeUnit()[0];
  const name = kind || (environments.length > 1 ? `held-out, ${env}` : "held-out success");
  return {
    x: points.map((p) => (axis === "step" ? p.step : p.elapsed_s / unit)),
    y: points.map((p) => p.success),
    name: plain(name),
    mode: "lines+markers",
    line: { color: colourOf, width: 2 },
    marker: { color: colourOf, size: 7 },
    customdata: points.map((p) =>
      p.low === null
        ? "interval not known"
        : `${p.low.toFixed(3)} to ${p.high.toFixed(3)}${p.tasks ? `, ${p.tasks} tasks` : ""}`,
    ),
    hovertemplate: "%{y:.3f} (%{customdata})<extra>%{fullData.name}</extra>",
    error_y: {
      type: "data",
      symmetric: false,
      color: colourOf,
      thickness: 1.2,
      width: 4,
      array: points.map((p) => (p.high === null ? 0 : p.high - p.success)),
      arrayminus: points.map((p) => (p.low === null ? 0 : p.success - p.low)),
    },
  };
}

/** The chart's series as [label, traces]: what the legend switches on and off. */
function seriesOf(chart) {
  const colours = PALETTE[Symbol.iterator]();
  const next = (i) => PALETTE[i % PALETTE.length];
  const series = (chart.lines || [])
    .filter((l) => COLUMNS[l.key]?.some((v) => v !== null))
    .map((l, i) => [l.label, lineTraces(l, next(i), chart), next(i)]);
  if (chart.rest && series.length) {
    const [whole, label] = chart.rest;
    COLUMNS["rest"] = (COLUMNS[whole] || []).map((v, i) =>
      Math.max(
        0,
        chart.lines.reduce((left, l) => left - (COLUMNS[l.key]?.[i] || 0), v || 0),
      ),
    );
    series.push([label, lineTraces(line("rest", label), colour("muted"), chart), colour("muted")]);
  }
  for (const of of chart.heldOut || []) {
    const shade = next(series.length);
    series.push([heldOutTrace(of, shade).name, [heldOutTrace(of, shade)], shade]);
  }
  return series;
}

function layoutOf(chart) {
  const { xaxis, yaxis, ...layout } = plainLayout();
  return {
    ...layout,
    hovermode: "x unified",
    dragmode: "zoom",
    xaxis: {
      ...xaxis,
      title: {
        text: axis === "step" ? "step" : timeUnit()[1],
        font: { size: 11, color: colour("muted") },
        standoff: 4,
      },
      hoverformat: ".6~g",
      spikecolor: colour("muted"),
      spikethickness: 1,
      spikedash: "solid",
    },
    yaxis: {
      ...yaxis,
      type: chart.log ? "log" : "linear",
      rangemode: chart.log ? "normal" : "tozero",
      nticks: 6,
      ...(chart.log ? { tickvals: LOG_TICKS, ticktext: LOG_TICKS.map((v) => number(v)) } : {}),
    },
  };
}

function draw(entry) {
  const traces = seriesOf(entry.chart).flatMap(([label, parts]) =>
    parts.map((part) => ({ ...part, visible: !entry.off.has(label) })),
  );
  Plotly.react(entry.plot, traces, layoutOf(entry.chart), PLOT_OPTIONS);
  entry.stale = false;
}

// A chart is drawn when it comes near the screen: a long run's take seconds together.
const nearScreen = new IntersectionObserver(
  (changes) => {
    for (const { target, isIntersecting } of changes) {
      const entry = drawn.find(({ plot }) => plot === target);
      entry.near = isIntersecting;
      if (entry.near && entry.stale) draw(entry);
    }
  },
  { rootMargin: "300px" },
);

function redrawCharts() {
  for (const entry of drawn) {
    entry.stale = true;
    if (entry.near) draw(entry);
  }
}

function makeChart(chart) {
  const series = seriesOf(chart);
  if (!series.length) return null;
  (chart.lines || []).forEach((l) => USED.add(l.key));
  const plot = el("div", { class: "plot" });
  const entry = { chart, plot, off: new Set(), stale: true, near: false };
  const legend =
    series.length < 2
      ? null
      : el(
          "div",
          { class: "legend" },
          series.map(([label, , shade]) =>
            el(
              "button",
              {
                "aria-pressed": "true",
                title: "show or hide",
                onclick: (event) => {
                  const off = entry.off.delete(label) ? false : Boolean(entry.off.add(label));
                  event.currentTarget.setAttribute("aria-pressed", !off);
                  draw(entry);
                },
              },
              el("span", { class: "swatch", style: `background:${shade}` }),
              label,
            ),
          ),
        );
  drawn.push(entry);
  nearScreen.observe(plot);
  return el(
    "div",
    { class: `card chart${chart.wide ? " wide" : ""}` },
    el(
      "h3",
      {},
      chart.title,
      chart.note ? el("span", { class: "muted small", style: "font-weight:400" }, ` · ${chart.note}`) : null,
    ),
    legend,
    plot,
  );
}

/** Figures that no chart above shows, by the first part of their name. */
function otherCharts() {
  const names = Object.keys(COLUMNS).filter(
    (k) => !USED.has(k) && k !== "rest" && !k.startsWith("eval/") && !k.startsWith("time/step"),
  );
  const heads = [...new Set(names.map((n) => n.split("/")[0]))];
  return heads.map((head) => ({
    title: head,
    lines: names.filter((n) => n.split("/")[0] === head).map((n) => line(n, n.slice(head.length + 1) || n)),
  }));
}

function headline() {
  const last = (key) => (COLUMNS[key] || []).findLast((v) => v !== null);
  const present = (key) => (COLUMNS[key] || []).filter((v) => v !== null);
  const largest = (key) => present(key).reduce((a, b) => Math.max(a, b), -Infinity);
  const latest = Math.max(5, Math.ceil(STEPS.length / 10));
  const recent = (key) =>
    present(key)
      .slice(-latest)
      .reduce((sum, v, _, all) => sum + v / all.length, 0);
  const rate = (key) => {
    // over the whole run: a single step's says little, as groups finish in bursts
    const [made, seconds] = STEPS.reduce(
      ([m, s], _, i) => {
        const step = COLUMNS["time/step_s"][i] || 0;
        return [m + (COLUMNS[key]?.[i] || 0) * step, s + step];
      },
      [0, 0],
    );
    return made / seconds;
  };
  const shown = [];
  for (const env of environments) {
    const points = DATA.curves.evaluations.filter((p) => p.env === env && !p.kind);
    const [from, to] = [points[0], points.at(-1)];
    const interval = to.low === null ? "" : `95%: ${to.low.toFixed(2)} to ${to.high.toFixed(2)}`;
    shown.push(
      figure(
        `held-out success${environments.length > 1 ? `, ${env}` : ""}`,
        points.length > 1 ? `${from.success.toFixed(2)} → ${to.success.toFixed(2)}` : to.success.toFixed(2),
        `step ${from.step} to ${to.step}; ${interval}`,
      ),
    );
  }
  if (STEPS.length) {
    shown.push(
      figure(
        "reward in training",
        number(recent("reward/mean")),
        `last ${latest} steps; highest ${number(largest("reward/mean"))}`,
      ),
      figure("lag", number(recent("lag/mean"), 2), `versions behind; largest ${number(largest("lag/max"))}`),
      figure(
        "tokens a second",
        number(rate("gen/tokens_per_s")),
        `generated; ${number(recent("train/tokens_per_s"))} trained while learning`,
      ),
    );
    const { both_s: both, window_s: whole } = DATA.timeline.shares;
    if (whole) shown.push(figure("both sides busy", percent(both / whole), "of the training loop's time"));
    shown.push(
      figure(
        "errored episodes",
        number(DATA.curves.errored),
        `${number(last("groups/dropped_stale") || 0)} groups dropped as stale`,
      ),
    );
  }
  return shown;
}

function drawCurves() {
  if (!STEPS.length && !environments.length) {
    byId("charts").append(el("div", { class: "card empty" }, "No step is finished yet."));
    byId("chart-controls").hidden = true;
    return;
  }
  byId("figures").append(...headline());
  for (const group of [...GROUPS, { title: "Other figures", charts: null }]) {
    const cards = (group.charts || otherCharts()).map(makeChart).filter(Boolean);
    if (cards.length) byId("charts").append(el("h2", {}, group.title), el("div", { class: "charts" }, cards));
  }
  byId("curves-note").textContent =
    DATA.curves.thinned > 1
      ? `${number(DATA.curves.steps)} steps; each point is the mean of ${DATA.curves.thinned} (of "largest", the largest)`
      : "drag over a chart to zoom, double-click to go back";
  choice("axis", axis, (value) => {
    keep("axis", (axis = value));
    redrawCharts();
  });
  byId("smooth").value = String(smooth);
  byId("smooth").addEventListener("change", (event) => {
    keep("smooth", (smooth = Number(event.target.value)));
    redrawCharts();
  });
}
