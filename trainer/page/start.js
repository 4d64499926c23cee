"use strict";
// The page of a run: what is on its last tab, and where everything begins.

function makeRun() {
  const { run } = DATA;
  const changed = (row) =>
    el("span", row.changed ? { class: "warn", title: `the default is ${row.default}` } : {}, row.value);
  const card = (title, ...content) =>
    el("div", { class: "card" }, el("h3", { style: "margin-bottom:6px" }, title), ...content);
  const sections = run.config.map((section) =>
    card(
      section.name || "run",
      table(
        [],
        section.rows.map((row) => [el("span", { class: "muted" }, row.key), changed(row)]),
      ),
    ),
  );
  byId("tab-run").append(
    el(
      "div",
      { class: "columns" },
      card(
        "status",
        table(
          [],
          run.status.map(([name, value]) => [el("span", { class: "muted" }, name), value]),
        ),
      ),
      card(
        "versions",
        table(
          [],
          run.versions.map(([name, value]) => [el("span", { class: "muted" }, name), value]),
        ),
      ),
      ...sections,
    ),
    el("p", { class: "muted small" }, "Coloured values differ from the defaults: hover to see those."),
    ...run.logs.map((log) =>
      card(`${log.name}${log.cut ? " (its end)" : ""}`, el("pre", { class: "log" }, log.text || "(empty)")),
    ),
  );
}

function showTimeline() {
  if (DATA.timeline.lanes.length && !byId("tab-timeline").hidden) drawTimeline();
}

/** Where the page is served, look for news every few seconds, and load it anew when there are any. */
function watch() {
  const known = DATA.fingerprint;
  setInterval(async () => {
    try {
      const answer = await fetch("fingerprint", { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== known) {
        keep("scroll", scrollY);
        location.reload();
      }
    } catch {
      /* the server is gone: the page stays as it is */
    }
  }, 5000);
}

start(
  { curves: drawCurves, timeline: makeTimeline, episodes: makeEpisodes, run: makeRun },
  { timeline: showTimeline },
  { curves: redrawCharts, timeline: showTimeline },
);
if (document.body.dataset.served === "yes") {
  scrollTo(0, Number(recall("scroll", 0)));
  watch();
}
