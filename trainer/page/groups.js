"use strict";
// Which charts there are, and the figures that each shows.

const COLUMNS = DATA.curves.columns;
const USED = new Set(["step", "time/elapsed_s", "eval/step"]);
const STEPS = COLUMNS.step || [];

const line = (key, label = key) => ({ key, label });
const having = (prefix, but = []) =>
  Object.keys(COLUMNS)
    .filter((k) => k.startsWith(prefix) && !but.includes(k))
    .map((k) => line(k, k.slice(prefix.length)));

const environments = [...new Set(DATA.curves.evaluations.map((p) => p.env))];
const kindsOf = (env) => [
  ...new Set(DATA.curves.evaluations.filter((p) => p.env === env && p.kind).map((p) => p.kind)),
];

const GROUPS = [
  {
    title: "Learning",
    charts: [
      {
        title: "Reward and success",
        wide: true,
        lines: [line("reward/mean", "reward in training"), line("episodes/success", "success in training")],
        heldOut: environments.map((env) => [env, ""]),
        note: "held-out success with its 95% interval",
      },
      ...environments
        .filter((env) => kindsOf(env).length > 1)
        .map((env) => ({
          title: `Held-out success by kind: ${env}`,
          note: DATA.curves.evaluations.some((p) => p.env === env && p.kind && p.low !== null) ? "95% intervals" : "",
          heldOut: kindsOf(env).map((kind) => [env, kind]),
        })),
      { title: "Success in training by kind", lines: having("success/") },
      { title: "Reward components", note: "mean of an episode", lines: having("reward/", ["reward/mean"]) },
    ],
  },
  {
    title: "Off-policy health",
    charts: [
      {
        title: "Lag",
        note: "weight versions behind, by token",
        lines: [line("lag/mean", "mean"), line("lag/max", "largest")],
      },
      { title: "Effective sample share", note: "1 is on-policy", lines: [line("policy/ess", "share")], top: 1 },
      { title: "Entropy", note: "nats a token", lines: [line("policy/entropy", "entropy")] },
      {
        title: "Probability ratio π/μ",
        note: "extremes over tokens",
        log: true,
        lines: [line("policy/ratio_max", "largest"), line("policy/ratio_min", "smallest")],
      },
      { title: "KL(μ‖π)", note: "nats a token", lines: [line("policy/kl_mu_pi", "KL")] },
      { title: "Clipped share", note: "of tokens", lines: [line("policy/clipped_share", "clipped")] },
    ],
  },
  {
    title: "Speed",
    charts: [
      {
        title: "Tokens a second",
        lines: [
          line("gen/tokens_per_s", "generated, all workers"),
          line("train/tokens_per_s", "trained, while learning"),
        ],
      },
      {
        title: "Where a step's time goes",
        note: "seconds; evaluations that wait are in other",
        stack: true,
        lines: [
          line("time/wait_s", "wait for groups"),
          line("time/learn_s", "learn"),
          line("time/publish_s", "publish"),
        ],
        rest: ["time/step_s", "other"],
      },
      {
        title: "Episodes",
        note: "means",
        lines: [line("episodes/turns", "turns"), line("episodes/sampled_tokens", "sampled tokens")],
      },
    ],
  },
  {
    title: "Drops and faults",
    charts: [
      {
        title: "Stale groups dropped",
        note: "in all so far",
        lines: [line("groups/dropped_stale", "in all"), ...having("groups/dropped_stale/")],
      },
      {
        title: "Errored and retried episodes",
        note: "a step",
        lines: [
          line("episodes/errored", "errored"),
          line("episodes/retries", "retries"),
          line("eval/errored", "errored in evaluation"),
        ],
      },
      {
        title: "Truncated and labelled episodes",
        note: "a step",
        lines: [line("episodes/truncated", "truncated"), line("episodes/labelled", "labelled")],
      },
      {
        title: "Link",
        note: "tickets out now; counts in all so far",
        lines: [
          line("groups/out", "tickets out"),
          line("link/regranted", "granted again"),
          line("link/malformed", "malformed frames"),
        ],
      },
      {
        title: "Groups without variance",
        note: "share of groups",
        lines: [line("groups/zero_variance_share", "share")],
      },
    ],
  },
  {
    title: "Optimizer",
    charts: [
      { title: "Loss", lines: [line("train/loss", "loss")] },
      { title: "Gradient norm", note: "before clipping", lines: [line("train/grad_norm", "norm")] },
      { title: "Learning rate", note: "share of its peak", lines: [line("train/learning_rate_share", "share")] },
      { title: "Updates skipped", note: "a step", lines: [line("train/skipped_updates", "skipped")] },
    ],
  },
];
