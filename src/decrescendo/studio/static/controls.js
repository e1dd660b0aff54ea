// The controls: what there is to choose, and what is chosen as a form. Whoever moves one has `changed` called (studio.js).
"use strict";
const FIELDS = {
  epsilon: { label: "Epsilon ε", low: 0.05, high: 20, value: 2 },
  delta: { label: "Delta δ", low: 1e-10, high: 1e-2, value: 1e-6, digits: 1 },
  examples_per_person: { label: "Examples a person, at most", low: 2, high: 1000, value: 2, digits: 2, whole: true },
  dataset_size: { label: "Examples N", low: 100, high: 1e7, value: 60000, digits: 2, whole: true },
  batch: { label: "Expected batch B", low: 1, high: 1e5, value: 250, digits: 3, whole: true },
  batch_end: { label: "Ends at", low: 1, high: 1e5, value: 1000, digits: 3, whole: true },
  max_batch_size: { label: "Rows, at most", low: 1, high: 1e6, value: 350, digits: 3, whole: true },
  steps: { label: "Steps T", low: 1, high: 1e5, value: 2000, digits: 2, whole: true },
  noise_fall: { label: "Falls by the factor", low: 0.25, high: 10, value: 1.25 },
  clip_start: { label: "Starts at", low: 0.01, high: 100, value: 1 },
  clip_fall: { label: "Falls by the factor", low: 0.25, high: 20, value: 3 },
};
const SHAPES = {
  noise: [["constant", "constant"], ["exponential", "growing μ"], ["linear", "linear in μ"],
    ["cosine", "cosine in μ"], ["optimal", "best for the clip norm"], ["hand", "by hand"]],
  clip: [["constant", "constant"], ["exponential", "sensitivity decay"], ["linear", "linear"],
    ["cosine", "cosine"], ["hand", "by hand"]],
  cap: [["any", "of any size"], ["auto", "cut, for 1 % of δ"], ["hand", "cut to"]],
  batches: [["constant", "stay as they are"], ["linear", "linear"], ["exponential", "exponential"]],
};
const AT = ["start", "¼", "½", "¾", "end"];
// What an error starts with, and the control that it is about.
const SAID_BY = { epsilon: "epsilon", "the budget": "epsilon", "some noise": "epsilon", delta: "delta", "batch end": "batch_end", batch: "batch",
  examples_per_person: "examples_per_person", max_batch_size: "max_batch_size", dataset_size: "dataset_size", expected_batch_size: "batch", steps: "steps", "noise fall": "noise_fall",
  "clip norm": "clip_start", "clip fall": "clip_fall" };
const short = (value, digits = 3) => {
  const near = Number(value.toPrecision(digits));
  return near !== 0 && Math.abs(near) < 1e-3 ? near.toExponential() : String(near);
};

for (const [name, field] of Object.entries(FIELDS)) {
  const place = document.querySelector(`[data-field=${name}]`);
  const text = make("input", { type: "text", id: name, value: short(field.value, 6), inputMode: "decimal" });
  const slider = make("input", { type: "range", min: 0, max: 1000, step: "any", ariaLabel: `${field.label}, slider` });
  const ratio = Math.log(field.high / field.low);
  const place_slider = () => {
    const value = number(text.value);
    if (value > 0) slider.value = 1000 * Math.min(1, Math.max(0, Math.log(value / field.low) / ratio));
  };
  slider.addEventListener("input", () => {
    const value = field.low * Math.exp((slider.value / 1000) * ratio);
    text.value = field.whole ? String(Math.round(Number(short(value, field.digits)))) : short(value, field.digits);
    changed(true);
  });
  slider.addEventListener("change", () => changed(false));
  text.addEventListener("input", () => (place_slider(), changed(false, 500)));
  place.className = "field";
  place.append(make("label", { htmlFor: name, textContent: field.label }), text, slider, make("em"));
  place_slider();
}
for (const kind of ["noise", "clip", "batches", "cap"]) {
  $(kind).append(...SHAPES[kind].map(([value, words]) => make("option", { value, textContent: words })));
  $(kind).addEventListener("change", () => (arrange(), changed(false)));
}
for (const kind of ["noise", "clip"]) {
  $(kind).value = "exponential";
  document.querySelector(`[data-hand=${kind}]`).append(...AT.map((at, i) => {
    const slider = make("input", { type: "range", min: -1.5, max: 1.5, step: 0.01, value: (kind === "noise" ? 0.3 : 0.6) - i * 0.25 });
    slider.ariaLabel = `${kind} at the ${at}`;
    const shown = make("output");
    const show = () => (shown.textContent = short(Math.exp(slider.value), 2));
    slider.addEventListener("input", () => (show(), changed(true)));
    slider.addEventListener("change", () => changed(false));
    show();
    return make("label", {}, shown, slider, at);
  }));
}
$("unit").addEventListener("change", () => (arrange(), changed(false)));

function number(text) {
  const plain = text.replace(/[\s,_]/g, "");
  return plain === "" || Number.isNaN(Number(plain)) ? text : Number(plain);
}
function arrange() {
  for (const kind of ["noise", "clip"]) {
    const shape = $(kind).value;
    document.querySelector(`[data-hand=${kind}]`).hidden = shape !== "hand";
    document.querySelector(`[data-field=${kind}_fall]`).hidden = ["constant", "optimal", "hand"].includes(shape);
  }
  document.querySelector("[data-field=clip_start]").hidden = $("clip").value === "hand";
  document.querySelector("[data-field=examples_per_person]").hidden = $("unit").value !== "person";
  document.querySelector("[data-field=max_batch_size]").hidden = $("cap").value !== "hand";
  document.querySelector("[data-field=batch_end]").hidden = $("batches").value === "constant";
}
function form() {
  const read = (name) => number($(name).value);
  const levels = (kind) => [...document.querySelectorAll(`[data-hand=${kind}] input`)].map((one) => Math.exp(one.value));
  return {
    epsilon: read("epsilon"), delta: read("delta"), unit: $("unit").value,
    examples_per_person: read("examples_per_person"), cap: { shape: $("cap").value, size: read("max_batch_size") },
    dataset_size: read("dataset_size"), batch: read("batch"), steps: read("steps"),
    batches: { shape: $("batches").value, end: read("batch_end") },
    noise: { shape: $("noise").value, fall: read("noise_fall"), levels: levels("noise") },
    clip: { shape: $("clip").value, start: read("clip_start"), fall: read("clip_fall"), levels: levels("clip") },
  };
}
