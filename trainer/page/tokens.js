"use strict";
// An episode's tokens: the sampled ones coloured by log-probability or by weight version, the others grey.

const TOKENS_AT_FIRST = 6000,
  SURPRISE_NATS = 5;
let colouring = recall("colouring", "logprob");

/** Each token with what is known of it: {id, drawn, logprob, version}. */
function tokensOf(sequence) {
  const tokens = sequence.tokens.map((id) => ({ id, drawn: false }));
  let at = 0,
    drawn = 0,
    versionAt = 0,
    versionLeft = sequence.versions[0]?.[1] || 0;
  sequence.runs.forEach((length, i) => {
    for (let end = at + length; at < end; at++) {
      if (i % 2 === 0) continue;
      while (versionLeft === 0) versionLeft = sequence.versions[++versionAt][1];
      versionLeft--;
      Object.assign(tokens[at], {
        drawn: true,
        logprob: sequence.logprobs[drawn++] / 1000,
        version: sequence.versions[versionAt][0],
      });
    }
  });
  return tokens;
}

/** From green (certain) over yellow to red (as improbable as e^-5 or less). */
function surpriseColour(logprob) {
  const share = Math.min(1, -logprob / SURPRISE_NATS) ** 0.7;
  return `hsl(${140 - 140 * share} 70% 50% / ${0.2 + 0.35 * share})`;
}

function versionColour(version) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(PALETTE[version % PALETTE.length].slice(i, i + 2), 16));
  return `rgb(${r} ${g} ${b} / 0.4)`;
}

function tokenText(id) {
  const text = DATA.episodes.texts[id];
  return text === undefined ? String(id) : text === "" ? "∅" : text.replaceAll("\n", "⏎\n");
}

function paint(node, token) {
  const fill =
    !token.drawn || colouring === "none"
      ? ""
      : colouring === "version"
        ? versionColour(token.version)
        : surpriseColour(token.logprob);
  node.style.background = fill;
}

function sequenceNode(tokens) {
  const known = Object.keys(DATA.episodes.texts).length > 0;
  const box = el("div", { class: `tokens${known ? "" : " ids"}` });
  const nodes = [];
  const more = (from, to) => {
    for (const token of tokens.slice(from, to)) {
      const node = el("span", token.drawn ? { class: "drawn" } : {}, tokenText(token.id));
      node.token = token;
      paint(node, token);
      nodes.push(node);
    }
    box.append(...nodes.slice(from));
    if (to < tokens.length) {
      const button = el(
        "button",
        {
          onclick: () => {
            button.remove();
            more(to, tokens.length);
          },
        },
        `show the other ${number(tokens.length - to)} tokens`,
      );
      box.append(button);
    }
  };
  more(0, TOKENS_AT_FIRST);
  box.addEventListener("mousemove", ({ target, clientX, clientY }) =>
    tip(target.token ? tokenTip(target.token) : "", { clientX, clientY }),
  );
  box.addEventListener("mouseleave", () => tip(""));
  box.repaint = () => nodes.forEach((node) => paint(node, node.token));
  return box;
}

function tokenTip(token) {
  const text = DATA.episodes.texts[token.id];
  const head = `id ${token.id}${text === undefined ? "" : `  ${JSON.stringify(text)}`}`;
  if (!token.drawn) return `${head}\nnot sampled: prompt, tool output or markup`;
  return `${head}\nlog-probability ${token.logprob.toFixed(3).replace("-", "−")} (${(100 * Math.exp(token.logprob)).toPrecision(3)}%)\nweight version ${token.version}`;
}

function tokenLegend(all) {
  const drawn = all.flat().filter((t) => t.drawn);
  if (colouring === "none" || !drawn.length) return [];
  if (colouring === "version") {
    return [...new Set(drawn.map((t) => t.version))]
      .sort((a, b) => a - b)
      .map((version) =>
        el(
          "span",
          {},
          el("span", { class: "swatch", style: `background:${versionColour(version)}` }),
          `version ${version}`,
        ),
      );
  }
  const stops = [0, -0.5, -1, -2, -3, -5].map(surpriseColour).join(",");
  return [
    el(
      "span",
      {},
      "certain ",
      el("span", { class: "scale", style: `background:linear-gradient(90deg,${stops})` }),
      ` improbable (log-probability −${SURPRISE_NATS} or less)`,
    ),
  ];
}

function tokensPart(body) {
  const all = body.sequences.map(tokensOf);
  if (!all.length)
    return [el("h3", { style: "margin-top:18px" }, "Tokens"), el("p", { class: "muted" }, "No token was sampled.")];
  const boxes = all.map(sequenceNode);
  const legend = el("span", { class: "legend muted" }, tokenLegend(all));
  const drawn = all.flat().filter((t) => t.drawn);
  const average = drawn.reduce((sum, t) => sum + t.logprob, 0) / drawn.length;
  const buttons = [
    ["logprob", "by log-probability"],
    ["version", "by weight version"],
    ["none", "plain"],
  ].map(([value, text]) =>
    el(
      "button",
      {
        "data-value": value,
        "aria-pressed": value === colouring,
        onclick: (event) => {
          keep("colouring", (colouring = value));
          buttons.forEach((b) => b.setAttribute("aria-pressed", b === event.currentTarget));
          legend.replaceChildren(...tokenLegend(all));
          boxes.forEach((box) => box.repaint());
        },
      },
      text,
    ),
  );
  const total = all.reduce((sum, tokens) => sum + tokens.length, 0);
  return [
    el(
      "h3",
      { style: "margin:18px 0 6px" },
      "Tokens",
      el(
        "span",
        { class: "muted small", style: "font-weight:400" },
        ` · ${number(drawn.length)} of ${number(total)} sampled${drawn.length ? `, mean log-probability ${average.toFixed(3).replace("-", "−")}` : ""}; grey ones are not`,
      ),
    ),
    el("div", { class: "controls", style: "margin:0" }, el("span", { class: "choice" }, buttons), legend),
    ...boxes.flatMap((box, i) =>
      boxes.length > 1
        ? [el("p", { class: "muted small", style: "margin:10px 0 0" }, `sequence ${i + 1} of ${boxes.length}`), box]
        : [box],
    ),
  ];
}
