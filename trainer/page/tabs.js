"use strict";
// The header, the tabs, and light or dark: what every page has. `start` begins one.

let made, tabs, afterShow, afterTheme;

function go(tab, episode) {
  for (const name of Object.keys(tabs)) byId(`tab-${name}`).hidden = name !== tab;
  document.querySelectorAll("nav button").forEach((b) => b.setAttribute("aria-selected", b.dataset.tab === tab));
  if (!made.has(tab)) tabs[tab]();
  made.add(tab);
  afterShow[tab]?.();
  if (tab === "episodes" && LINES.length)
    openEpisode(LINES.find((l) => l.id === episode) || selected || matching[0] || LINES[0]);
}

function fromAddress() {
  const [tab, episode] = location.hash.slice(1).split("/");
  go(tab in tabs ? tab : Object.keys(tabs)[0], episode);
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
  for (const [tab, redraw] of Object.entries(afterTheme)) if (made.has(tab)) redraw();
}

/** Begin the page: what makes each tab when it is first shown; what follows each showing; what a new theme redraws. */
function start(make, shown = {}, themed = {}) {
  made = new Set();
  [tabs, afterShow, afterTheme] = [make, shown, themed];
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
}
