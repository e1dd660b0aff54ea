// The page: what is asked and shown, after controls.js (a form) and charts.js (curves). Nothing is computed in any of them
// that a promise depends on.
"use strict";
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
  { title: "Noise on the sum", of: (s) => s.curves.zc && [s.t, s.curves.zc], x: "step" },
  { title: "Expected batch Bₜ", of: (s) => s.curves.b && [s.t, s.curves.b], x: "step" },
  { title: "Released loss, mean of 20 steps", of: (s) => s.telemetry.loss, x: "step" },
  { title: "Released accuracy, mean of 20 steps", of: (s) => s.telemetry.accuracy, x: "step" },
  { title: "Released share of clipped gradients, mean of 20 steps", of: (s) => s.telemetry.clipped_share, x: "step" },
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
