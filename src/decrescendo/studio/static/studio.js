// The page: controls to a form, answers to text, tables and curves. Nothing is computed here that a promise depends on.
// Longer than most files: the page has one state, and every control and answer goes through it.
"use strict";
const $ = (id) => document.getElementById(id);
const make = (tag, facts = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), facts);
  node.append(...children);
  return node;
};
// Of what this page asks while the studio computes, only the last is answered: see `wants`.
const PAGE = String(Math.random()), PATIENCE = 1500;
let asking = new AbortController(), since = 0;
const ask = async (name, body) => {
  let answer;
  try {
    const sent = { method: "POST", headers: { "content-type": "application/json", ...(name === "file" ? {} : { "x-page": PAGE }) }, body: JSON.stringify(body) };
    [asking, since] = [new AbortController(), performance.now()];
    answer = await fetch(`api/${name}`, { ...sent, signal: asking.signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the studio no longer answers: is `decrescendo studio` still running?");
  }
  const found = await answer.json().catch(() => ({ error: `the studio answered with ${answer.status}` }));
  if (found.error) throw Object.assign(new Error(found.error), answer.status === 409 ? { name: "AbortError" } : {});
  return found;
};

// Controls -----------------------------------------------------------------------------------------------------------
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

// Asking: the newest wish wins, one at a time ------------------------------------------------------------------------
let now = null, kept = null, wish = null, busy = false, timer = 0, last = "";
function changed(quick, after = 0) {
  clearTimeout(timer);
  const wanted = JSON.stringify([form(), quick]);
  if (wanted === last && now?.planned && (busy || !document.body.classList.contains("stale"))) return;
  stale(true);
  say("computing …");
  timer = setTimeout(() => wants({ quick }), after);
}
// What is shown is not what the controls say: it is not saved.
function stale(is) {
  document.body.classList.toggle("stale", is);
  for (const button of $("files").querySelectorAll("button")) button.disabled = is;
}
// A control may have moved while this was computed.
const late = (subject) => Boolean(subject?.planned && subject.asked !== JSON.stringify(form()));
// With a file open the controls do not say what is shown: "Back to the controls" wakes them.
function resting(is) {
  $("controls").classList.toggle("resting", is);
  for (const part of $("controls").querySelectorAll("fieldset")) part.disabled = is;
}
const say = (words) => ($("status").textContent = $("brief").dataset.status = words);
function wants(next) {
  wish = next;
  if (!busy) return serve();
  // Short answers are shown while a control moves; one that takes long is given up.
  setTimeout(() => wish === next && busy && performance.now() - since >= PATIENCE && asking.abort(), Math.max(0, since + PATIENCE + 1 - performance.now()));
}
async function serve() {
  busy = true;
  while (wish) {
    const { quick, number: again, show, chosen } = wish;
    wish = null;
    try {
      if (chosen) {
        const answer = await opened(chosen);
        if (!wish) shown(answer);
        continue;
      }
      if (show) present(show);
      else if (again) present(await ask("look", { number: again }));
      else {
        const asked = form();
        last = JSON.stringify([asked, quick]);
        present({ ...(await ask("plan", { form: asked, quick })), planned: true, quick, asked: JSON.stringify(asked) });
        passes(asked);
      }
      if (wish || quick) continue;
      say("asking the accountants …");
      const subject = now;
      const judged = {};
      for (const part of ["attack", "claims", "spent"]) {
        if (!wish) Object.assign(judged, await ask("judge", { number: subject.number, part }));
      }
      if (!wish) present(Object.assign(subject, { judged }));
    } catch (error) {
      if (!wish && error.name !== "AbortError") refuse(error.message);
    }
  }
  busy = false;
}
function passes(asked) {
  const { batch, batches: { shape, end } } = asked;
  const mean = shape === "linear" ? (batch + end) / 2 : shape === "exponential" && end !== batch ? (end - batch) / Math.log(end / batch) : batch;
  const count = (asked.steps * mean) / asked.dataset_size;
  $("epochs").textContent = `${short(count)} expected passes over the data`;
}
function refuse(words) {
  const name = Object.keys(SAID_BY).find((start) => words.startsWith(start));
  unmark();
  const place = name && document.querySelector(`[data-field=${SAID_BY[name]}]`);
  if (place) {
    place.classList.add("bad");
    place.querySelector("em").textContent = words;
    $(SAID_BY[name]).ariaInvalid = "true";
  }
  $("error").textContent = words;
  $("error").hidden = false;
  say(now ? "below: the last that could be computed" : "");
}
function unmark() {
  $("error").hidden = true;
  for (const place of document.querySelectorAll(".field.bad")) {
    place.classList.remove("bad");
    place.querySelector("em").textContent = "";
    place.querySelector("input").ariaInvalid = "false";
  }
}

// Showing ------------------------------------------------------------------------------------------------------------
function present(subject) {
  // What the accountants said of the controls before stays, faded, until they have said it of these.
  if (subject.planned && !subject.judged && now?.planned) subject.before = now.judged ?? now.before;
  now = subject;
  unmark();
  $("title").textContent = subject.planned ? "Plan" : subject.title;
  $("promise").textContent = subject.promise || "Nothing was promised of this noise; the accountants below judge it.";
  say(subject.judged ? "certified" : subject.quick ? "while you move" : "");
  $("notes").replaceChildren(...subject.notes.map((line) => make("li", { textContent: line })));
  $("files").replaceChildren(...subject.files.map((name) => {
    const button = make("button", { type: "button", textContent: `Save ${name}` });
    button.addEventListener("click", () => save(name).catch((error) => refuse(error.message)));
    return button;
  }));
  stale(late(subject));
  if (late(subject)) say("computing …");
  $("back").hidden = Boolean(subject.planned);
  resting(!subject.planned);
  for (const row of document.querySelectorAll("tr.pick")) row.classList.toggle("now", Number(row.dataset.number) === subject.number);
  redraw();
}
async function save(name) {
  const { text } = await ask("file", { number: now.number, name });
  const link = make("a", { href: URL.createObjectURL(new Blob([text])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
function table(place, head, rows, first = 1) {
  const cells = (row) => row.map((cell, i) => make(i < first ? "th" : "td", { textContent: cell, className: i > 1 && kept && place.id === "figures" ? "kept" : "" }));
  const body = make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row))));
  place.replaceChildren(...(head ? [make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { textContent: text }))))] : []), body);
}
const heard = (subject) => subject?.judged ?? subject?.before;
const CHARTS = [
  { title: "Noise multiplier zₜ", of: (s) => s.curves.z && [s.t, s.curves.z], x: "step" },
  { title: "Clip norm Cₜ", of: (s) => s.curves.c && [s.t, s.curves.c], x: "step" },
  { title: "Noise on the sum zₜ Cₜ", of: (s) => s.curves.zc && [s.t, s.curves.zc], x: "step" },
  { title: "Expected batch Bₜ", of: (s) => s.curves.b && [s.t, s.curves.b], x: "step" },
  { title: "Epsilon spent", of: (s) => heard(s)?.spent, x: "step", late: true, stairs: true },
  { title: "Members an attacker can find", of: (s) => heard(s) && [heard(s).attack.alarms, heard(s).attack.power],
    x: "share of others taken for members", late: true, blind: true },
];
function redraw() {
  $("charts").replaceChildren(...CHARTS.map((one) => {
    const lines = [["b", kept], ["a", now]].map(([style, subject]) => ({ style, points: subject && one.of(subject) }));
    const there = lines.filter(({ points }) => points);
    if (!there.length) return "";
    const figure = chart(one, there);
    figure.classList.toggle("old", Boolean(one.late && !now.judged));
    return figure;
  }), attackers());
  $("drop").hidden = $("legend").hidden = !kept;
  $("kept").textContent = kept ? `${kept.title}, ${kept.promise}` : "";
  const mine = new Map(now.rows), other = new Map(kept?.rows ?? []);
  const all = [...new Set([...mine.keys(), ...other.keys()])];
  table($("figures"), kept && ["", "now", "kept"], all.map((label) => [label, mine.get(label) ?? "–", ...(kept ? [other.get(label) ?? "–"] : [])]));
  table($("claims"), ["", "epsilon", "which is"], heard(now)?.claims ?? [["…", "", ""]], 2);
  $("claims").classList.toggle("old", !now.judged);
  $("brief").textContent = now.rows.slice(1, 3).map((row) => row.join(" ")).join(" · ");
}
function attackers() {
  const found = heard(now)?.attack.shown;
  if (!found) return "";
  const list = make("table");
  const others = kept?.judged?.attack.shown;
  table(list, ["wrong about others", "finds members, at most", ...(others ? ["kept"] : [])], found.map((row, i) => [...row, ...(others ? [others[i][1]] : [])]), 0);
  return make("figure", { className: now.judged ? "" : "old" }, make("figcaption", { textContent: "Who was in the data?" },
    make("small", { textContent: `The best test that anybody can make, whatever else they know, by ${heard(now).attack.by}` })), list);
}

// Curves as SVG ------------------------------------------------------------------------------------------------------
const draw = (tag, facts, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(facts)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
function ticks(low, high, about = 5) {
  const raw = (high - low) / about, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i++) found.push(Number((i * step).toPrecision(10)));
  return found;
}
const plain = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(0) : value.toLocaleString("en", { maximumSignificantDigits: 4 }));
function chart({ title, x: axis, blind, limit, stairs }, lines) {
  const wide = 330, high = 200, [left, right, top, bottom] = [42, 16, 8, 34];
  const xs = lines.flatMap(({ points }) => points[0]), ys = lines.flatMap(({ points }) => points[1]);
  const low = blind ? 0 : Math.min(...xs), end = Math.max(...xs, low + 1e-9), most = Math.max(...ys, limit ?? 0) * 1.04 || 1;
  const X = (x) => left + ((x - low) / (end - low || 1)) * (wide - left - right);
  const Y = (y) => high - bottom - (y / most) * (high - top - bottom);
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": title });
  for (const y of ticks(0, most)) {
    svg.append(draw("line", { class: "grid", x1: left, x2: wide - right, y1: Y(y), y2: Y(y) }));
    svg.append(draw("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, plain(y)));
  }
  // Steps and runs are whole.
  for (const x of ticks(low, end).filter((at) => blind || Number.isInteger(at))) svg.append(draw("text", { x: X(x), y: high - bottom + 15, "text-anchor": "middle" }, plain(x)));
  svg.append(draw("text", { x: (left + wide - right) / 2, y: high - 4, "text-anchor": "middle" }, axis));
  if (blind) svg.append(draw("path", { class: "blind", d: `M${X(0)} ${Y(0)}L${X(1)} ${Y(1)}` }));
  if (limit) svg.append(draw("path", { class: "blind", d: `M${left} ${Y(limit)}H${wide - right}` }));
  for (const { style, points } of lines) {
    const at = points[0].map((x, i) => (stairs && i ? `V${Y(points[1][i]).toFixed(1)}H${X(x).toFixed(1)}` : `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(points[1][i]).toFixed(1)}`));
    svg.append(draw("path", { class: style, d: at.join("") + (at.length === 1 ? "h3" : "") }));
  }
  const ends = (points) => (points[1][0] === points[1].at(-1) ? plain(points[1][0]) : `${plain(points[1][0])} → ${plain(points[1].at(-1))}`);
  const rest = blind ? "dotted: guessing blindly" : lines.map(({ points }) => ends(points)).reverse().join("  ·  kept ");
  const told = make("small", { textContent: rest });
  const cross = draw("line", { class: "cross", y1: top, y2: high - bottom, visibility: "hidden" });
  svg.append(cross);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), x = low + (((event.clientX - box.left) / box.width) * wide - left) / (wide - left - right) * (end - low);
    const near = lines.map(({ points }) => points[0].reduce((best, one, i) => (Math.abs(one - x) < Math.abs(points[0][best] - x) ? i : best), 0));
    const main = lines.length - 1, at = lines[main].points[0][near[main]];
    told.textContent = `${axis} ${plain(at)}: ` + lines.map(({ points }, i) => plain(points[1][near[i]])).reverse().join("  ·  kept ");
    for (const side of ["x1", "x2"]) cross.setAttribute(side, X(at));
    cross.setAttribute("visibility", "visible");
  });
  svg.addEventListener("pointerleave", () => (cross.setAttribute("visibility", "hidden"), (told.textContent = rest)));
  return make("figure", {}, make("figcaption", { textContent: title }, told), svg);
}

// Files --------------------------------------------------------------------------------------------------------------
const text64 = (file) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => failed(new Error(`${file.name} must be a readable file`));
  reader.readAsDataURL(file);
});
// In turn with all else that is asked: of what a page asks while the studio computes only the last is answered, and a
// judgement under way would be followed by the next.
function open(chosen) {
  clearTimeout(timer);
  stale(true);
  say("opening …");
  wants({ chosen });
}
async function opened(chosen) {
  try {
    const files = {};
    for (const file of chosen) files[file.name] = await text64(file);
    const { batch, dataset_size, delta } = form();
    return await ask("open", { files, sample_rate: batch / dataset_size, delta });
  } catch (error) {
    stale(late(now));
    throw error;
  }
}
function shown(answer) {
  clearTimeout(timer);
  $("store").hidden = !answer.store;
  if (!answer.store) return wants({ show: answer });
  const { title, words, budget, rows } = answer.store;
  stale(false);
  resting(true);
  $("back").hidden = false;
  say("");
  let sum = 0;
  const sums = rows.map((row) => (sum += row[3] ?? 0));
  const list = make("table");
  table(list, ["run", "who", "started (UTC)", "epsilon", "delta", "steps released", "state"], rows.map((row) => row.map((cell) => (typeof cell === "number" ? plain(cell) : (cell ?? "none")))));
  [...list.tBodies[0].rows].forEach((row, i) => {
    Object.assign(row, { className: "pick", tabIndex: 0 });
    row.dataset.number = answer.numbers[i];
    row.addEventListener("click", () => wants({ number: answer.numbers[i] }));
    row.addEventListener("keydown", (event) => event.key === "Enter" && row.click());
  });
  const whole = rows.length ? chart({ title: "Sum of the runs' epsilons", x: "runs, in the order in which they began", limit: budget }, [{ style: "a", points: [[0, ...rows.map((_, i) => i + 1)], [0, ...sums]] }]) : "";
  $("store").replaceChildren(make("h2", { textContent: title }), make("p", { textContent: `${rows.length.toLocaleString("en")} runs. ${words}` }),
    whole, make("p", { className: "hint", textContent: "Choose a run to see it." }), make("div", { className: "scroll" }, list));
  if (rows.length) wants({ number: answer.numbers.at(-1) });
}
$("open").addEventListener("change", () => {
  const chosen = [...$("open").files];
  if (chosen.length) open(chosen);
  $("open").value = "";
});
$("folder").addEventListener("change", () => {
  const wanted = ["run.json", "plan.json", "adaptive_plan.json"]; // the weights stay where they are
  const chosen = [...$("folder").files].filter((file) => wanted.includes(file.name) && file.webkitRelativePath.split("/").length === 2);
  if (chosen.length) open(chosen);
  else refuse("a run's folder must hold run.json and plan.json, got another folder");
  $("folder").value = "";
});
$("keep").addEventListener("click", () => now && ((kept = now), redraw()));
$("drop").addEventListener("click", () => ((kept = null), redraw()));
$("back").addEventListener("click", () => (($("store").hidden = true), resting(false), (last = ""), changed(false)));
arrange();
ask("start", {}).then((first) => (first.number || first.store ? shown(first) : changed(false)), (error) => refuse(error.message));
