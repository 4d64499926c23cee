"use strict";
// The overlap timeline: one lane a process, one row a kind. A column of pixels that holds many bars is drawn as
// strongly as the share of its time that they cover.

const KINDS = {
  learn: "#2e9e6b",
  publish: "#1ba3a8",
  generate: "#3b7dd8",
  tool: "#e08a1e",
  load: "#8a63d2",
  wait: "#9aa3b2",
  idle: "#9aa3b2",
  training: "#2e9e6b",
  playing: "#3b7dd8",
  both: "#d64550",
};
const ROW = 20,
  BAR = 14,
  LANE_GAP = 12,
  LABEL = 132,
  TOP = 24,
  BOTTOM = 6,
  SHORTEST_S = 0.02,
  FAINTEST = 0.2;

const timeline = { rows: [], from: 0, to: 1, end: 1, height: 0 };

function kindColour(what) {
  if (KINDS[what]) return KINDS[what];
  let sum = 0;
  for (const letter of what) sum += letter.codePointAt(0);
  return PALETTE[sum % PALETTE.length];
}

/** Starts and ends in seconds, and the busy share of each bar (below 1 where several are drawn as one). */
function unpack(bars) {
  const length = bars.length / 3;
  const starts = new Float64Array(length),
    ends = new Float64Array(length),
    shares = new Float64Array(length);
  let at = 0;
  for (let i = 0; i < length; i++) {
    const [gap, long, busy] = bars.slice(3 * i, 3 * i + 3);
    starts[i] = (at += gap) / 1000;
    ends[i] = (at += long) / 1000;
    shares[i] = long ? busy / long : 1;
  }
  return { starts, ends, shares };
}

function layRows() {
  const lanes = [
    { process: "overlap", rows: Object.entries(DATA.timeline.sides).map(([what, bars]) => ({ what, bars })) },
    ...DATA.timeline.lanes,
  ];
  let y = TOP;
  for (const lane of lanes) {
    lane.rows.forEach((row, i) => {
      timeline.rows.push({ process: lane.process, what: row.what, first: i === 0, y, ...unpack(row.bars) });
      y += ROW;
    });
    y += LANE_GAP;
  }
  timeline.height = y - LANE_GAP + BOTTOM;
  timeline.end = timeline.to = Math.max(DATA.timeline.length_s, 0.001);
}

/** Index of the first bar of `row` that ends after `time`. */
function firstAfter(row, time) {
  let low = 0,
    high = row.ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.ends[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawRow(pen, row, width) {
  const { from, to } = timeline;
  const scale = (width - LABEL) / (to - from);
  const covered = new Float64Array(Math.ceil(width - LABEL) + 1);
  pen.fillStyle = kindColour(row.what);
  const weak = row.what === "wait" || row.what === "idle" ? 0.45 : 1;
  for (let i = firstAfter(row, from); i < row.starts.length && row.starts[i] < to; i++) {
    const left = Math.max(0, (row.starts[i] - from) * scale);
    const right = Math.min(width - LABEL, (row.ends[i] - from) * scale);
    if (right - left >= 2) {
      pen.globalAlpha = weak * Math.max(FAINTEST, row.shares[i]);
      pen.fillRect(LABEL + left, row.y, right - left, BAR);
    } else {
      const pixel = Math.floor(left);
      const here = Math.min(right, pixel + 1) - left;
      covered[pixel] += here * row.shares[i];
      covered[pixel + 1] += (right - left - here) * row.shares[i];
    }
  }
  covered.forEach((share, pixel) => {
    if (!share) return;
    pen.globalAlpha = weak * Math.max(FAINTEST, Math.min(1, share));
    pen.fillRect(LABEL + pixel, row.y, 1, BAR);
  });
  pen.globalAlpha = 1;
}

function tickStep(span, room) {
  const steps = [0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800];
  return steps.find((s) => span / s <= room / 90) || steps.at(-1);
}

/** Time on the run's clock, as h:mm:ss, with decimals where ticks are less than a second apart. */
function clockText(seconds, step) {
  const digits = step < 0.1 ? 2 : step < 1 ? 1 : 0;
  if (timeline.end < 2 * MINUTE) return `${seconds.toFixed(digits)} s`;
  const whole = Number(seconds.toFixed(digits)); // rounded first, so that no 60th second shows
  const pad = (value, length = 2) => value.padStart(length, "0");
  const hours = whole >= HOUR ? `${Math.floor(whole / HOUR)}:` : "";
  const minutes = pad(String(Math.floor((whole % HOUR) / MINUTE)));
  return `${hours}${minutes}:${pad((whole % MINUTE).toFixed(digits), digits ? digits + 3 : 2)}`;
}

function drawAxis(pen, width) {
  const { from, to } = timeline;
  const step = tickStep(to - from, width - LABEL);
  const x = (time) => LABEL + ((time - from) / (to - from)) * (width - LABEL);
  pen.textAlign = "center";
  for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
    pen.fillStyle = colour("grid");
    pen.fillRect(Math.round(x(time)), TOP - 4, 1, timeline.height - TOP);
    pen.fillStyle = colour("muted");
    if (x(time) < width - 28 && x(time) > LABEL - 4) pen.fillText(clockText(time, step), x(time), TOP - 10);
  }
  pen.fillStyle = colour("bad");
  for (const cut of DATA.timeline.cuts) {
    if (cut > from && cut < to)
      for (let y = TOP; y < timeline.height; y += 8) pen.fillRect(Math.round(x(cut)), y, 1, 4);
  }
}

function drawTimeline() {
  const canvas = byId("bars");
  const width = canvas.clientWidth,
    ratio = devicePixelRatio || 1;
  if (!width) return;
  canvas.style.height = `${timeline.height}px`;
  canvas.width = width * ratio;
  canvas.height = timeline.height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  drawAxis(pen, width);
  for (const row of timeline.rows) {
    drawRow(pen, row, width);
    pen.textAlign = "right";
    pen.fillStyle = colour("muted");
    pen.fillText(row.what, LABEL - 8, row.y + 11);
    if (row.first) {
      pen.textAlign = "left";
      pen.fillStyle = colour("ink");
      pen.fillText(row.process.length > 10 ? `${row.process.slice(0, 9)}…` : row.process, 0, row.y + 11);
    }
  }
  const step = tickStep(timeline.to - timeline.from, width - LABEL);
  byId("range").textContent =
    `${clockText(timeline.from, step)} to ${clockText(timeline.to, step)} (${duration(timeline.to - timeline.from)})`;
}

let waiting = false;
function redrawSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawTimeline();
  });
}

function show(from, to) {
  const span = Math.min(timeline.end, Math.max(SHORTEST_S, to - from));
  timeline.from = Math.max(0, Math.min(from, timeline.end - span));
  timeline.to = timeline.from + span;
  redrawSoon();
}

function zoomBy(factor, at = (timeline.from + timeline.to) / 2) {
  show(at - (at - timeline.from) * factor, at + (timeline.to - at) * factor);
}

const timeAt = (x) =>
  timeline.from + ((x - LABEL) / (byId("bars").clientWidth - LABEL)) * (timeline.to - timeline.from);

function barTip(event) {
  const row = timeline.rows.find((r) => event.offsetY >= r.y && event.offsetY < r.y + ROW);
  if (!row) return tip("");
  const time = timeAt(event.offsetX),
    slack = (timeline.to - timeline.from) / 400;
  let i = firstAfter(row, time);
  if (!(row.starts[i] <= time)) i = firstAfter(row, time - slack);
  if (i >= row.starts.length || row.starts[i] > time + slack) return tip(`${row.process}: ${row.what}`, event);
  const length = row.ends[i] - row.starts[i];
  const busy = row.shares[i] < 1 ? `, busy for ${percent(row.shares[i])} of them` : "";
  return tip(`${row.process}: ${row.what}\n${duration(length)}${busy}, from ${clockText(row.starts[i], 0.1)}`, event);
}

function listen(canvas) {
  let grip = null;
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const shift = (event.deltaX / canvas.clientWidth) * (timeline.to - timeline.from);
        show(timeline.from + shift, timeline.to + shift);
      } else zoomBy(Math.exp(event.deltaY / 400), timeAt(event.offsetX));
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    grip = { x: event.offsetX, from: timeline.from, to: timeline.to };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => {
    grip = null;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!grip) return barTip(event);
    const shift = ((grip.x - event.offsetX) / (canvas.clientWidth - LABEL)) * (grip.to - grip.from);
    return show(grip.from + shift, grip.to + shift);
  });
  canvas.addEventListener("pointerleave", () => tip(""));
  canvas.addEventListener("dblclick", () => show(0, timeline.end));
  canvas.addEventListener("keydown", (event) => {
    const step = (timeline.to - timeline.from) / 8;
    const moves = {
      "+": () => zoomBy(0.6),
      "=": () => zoomBy(0.6),
      "-": () => zoomBy(1.6),
      0: () => show(0, timeline.end),
      ArrowLeft: () => show(timeline.from - step, timeline.to - step),
      ArrowRight: () => show(timeline.from + step, timeline.to + step),
    };
    if (moves[event.key]) {
      moves[event.key]();
      event.preventDefault();
    }
  });
  const presets = {
    all: () => show(0, timeline.end),
    first: () => show(0, MINUTE),
    last: () => show(timeline.end - MINUTE, timeline.end),
    in: () => zoomBy(0.5),
    out: () => zoomBy(2),
  };
  byId("zoom")
    .querySelectorAll("button")
    .forEach((b) => b.addEventListener("click", presets[b.dataset.value]));
  new ResizeObserver(redrawSoon).observe(canvas);
}

function shareTable({ window_s: whole, seconds: processes }) {
  const rows = Object.entries(processes).flatMap(([process, kinds]) =>
    Object.entries(kinds).map(([what, seconds], i) => [
      i ? "" : process,
      el("span", {}, el("span", { class: "swatch", style: `background:${kindColour(what)}` }), what),
      number(seconds, 1),
      percent(seconds / whole),
    ]),
  );
  return table(["process", "kind", "seconds", "share"], rows, [2, 3]);
}

function timelineNote() {
  const { shares, total, shown, merged_s: merged, damaged, cuts, down_s: down } = DATA.timeline;
  const parts = [
    `Shares are of the ${duration(shares.window_s)} between the trainer's first and last recorded activity.`,
    "Training is learning or publishing; playing is at least one worker generating or running a tool. A worker's kinds overlap, since it plays many episodes at once.",
    "Where bars are narrower than a pixel, the colour's strength is the share of that pixel's time that they cover.",
  ];
  if (merged)
    parts.push(
      `${number(total)} bars were recorded and ${number(shown)} are drawn: neighbours of one kind that fit into ${number(merged)} s are one, whose colour is as strong as the share of it that is busy. The numbers are worked out from all of them.`,
    );
  if (cuts.length)
    parts.push(
      `The run was stopped ${cuts.length === 1 ? "once" : `${cuts.length} times`} (dashed red): stretches of over ${down} s in which no process reported anything are left out.`,
    );
  if (damaged) parts.push(`${damaged} torn ${damaged === 1 ? "line" : "lines"} of events.jsonl left out.`);
  return parts.join(" ");
}

function makeTimeline() {
  const { shares } = DATA.timeline;
  if (!DATA.timeline.lanes.length) {
    byId("tab-timeline").replaceChildren(
      el("div", { class: "card empty" }, "No process has reported what it did yet."),
    );
    return;
  }
  const { window_s: whole, training_s: training, playing_s: playing, both_s: both } = shares;
  byId("shares").append(
    figure("training busy", percent(training / whole), `${duration(training)} of ${duration(whole)}`),
    figure("playing busy", percent(playing / whole), "at least one worker"),
    figure("both at once", percent(both / whole), `${percent(both / training)} of training's time`),
    figure("neither", percent(Math.max(0, 1 - (training + playing - both) / whole)), "of the time"),
  );
  layRows();
  const kinds = [...new Set(timeline.rows.slice(3).map((r) => r.what))];
  byId("bars-legend").append(
    ...kinds.map((what) =>
      el("span", { class: "muted" }, el("span", { class: "swatch", style: `background:${kindColour(what)}` }), what),
    ),
  );
  byId("timeline-note").textContent = timelineNote();
  byId("processes").append(shareTable(shares));
  listen(byId("bars"));
}
