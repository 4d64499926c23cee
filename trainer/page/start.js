"use strict";
// The header, the tabs, the page about the run, and light or dark.

const TABS = ["curves", "timeline", "episodes", "run"];
const madeTabs = new Set();

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

const MAKE = { curves: drawCurves, timeline: makeTimeline, episodes: makeEpisodes, run: makeRun };
const SHOW = { timeline: () => DATA.timeline.lanes.length && drawTimeline() };

function go(tab, episode) {
  for (const name of TABS) byId(`tab-${name}`).hidden = name !== tab;
  document.querySelectorAll("nav button").forEach((b) => b.setAttribute("aria-selected", b.dataset.tab === tab));
  if (!madeTabs.has(tab)) MAKE[tab]();
  madeTabs.add(tab);
  SHOW[tab]?.();
  if (tab === "episodes" && LINES.length)
    openEpisode(LINES.find((l) => l.id === episode) || selected || matching[0] || LINES[0]);
}

function fromAddress() {
  const [tab, episode] = location.hash.slice(1).split("/");
  go(TABS.includes(tab) ? tab : "curves", episode);
}

function makeHeader() {
  byId("name").textContent = DATA.name;
  const { state, progress, tone } = DATA.status;
  byId("state").textContent = state;
  byId("state").classList.add(tone);
  byId("progress").textContent = progress;
  document.querySelectorAll("nav button").forEach((b) =>
    b.addEventListener("click", () => {
      history.replaceState(null, "", `#${b.dataset.tab}`);
      go(b.dataset.tab);
    }),
  );
}

function setTheme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  if (madeTabs.has("curves")) redrawCharts();
  if (madeTabs.has("timeline") && !byId("tab-timeline").hidden) SHOW.timeline();
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

const preferred = recall("theme", matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
setTheme(preferred === "dark");
byId("theme").addEventListener("click", () => {
  const dark = !document.documentElement.classList.contains("dark");
  keep("theme", dark ? "dark" : "light");
  setTheme(dark);
});
makeHeader();
addEventListener("hashchange", fromAddress);
fromAddress();
if (document.body.dataset.served === "yes") {
  scrollTo(0, Number(recall("scroll", 0)));
  watch();
}
