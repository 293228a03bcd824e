// The view of groups: what is proposed to be one, labels that look wrong, and the groups that there are.
import { WAYS, freeName, give, known, pictures, undo } from "./labels.js";
import { improvement } from "./improve.js";
import { make, picture } from "./results.js";

// Proposals, doubts and groups that are shown at a time.
const AT_ONCE = 4, DOUBTS = 12, SHOWN = 50;
// Groups that are shown in this visit.
let listed = SHOWN;
// What a person left as it is is not proposed again in this visit.
const left = new Set();

function button(words, act, properties = {}) {
  const element = make("button", { type: "button", textContent: words, ...properties });
  element.addEventListener("click", act);
  return element;
}

function section(title, words, ...children) {
  return make("section", { className: "part" }, make("h2", { textContent: title }), make("p", { className: "quiet", textContent: words }), ...children);
}

export function nameField(label, words) {
  const field = make("input", { type: "text", value: label, placeholder: "Name, if they have one", maxLength: 200, autocomplete: "off" });
  field.setAttribute("list", "names");
  field.setAttribute("aria-label", words);
  return field;
}

const labelled = () => known.groups.reduce((sum, { images }) => sum + images, 0);

function count() {
  const { groups, images } = known;
  return groups.length
    ? `${groups.length.toLocaleString("en")} group${groups.length === 1 ? "" : "s"}. ${labelled().toLocaleString("en")} of ${pictures(images)} are in one.`
    : "There are no groups yet. Confirm one, or select pictures of a search that show the same.";
}

// Shows the groups. `open` lists one of them; `again` shows all anew; `ask` asks the server; `say` tells.
export async function showAll(place, open, again, ask, say) {
  say(count());
  // What was proposed before stays until what is now proposed arrives, so that nothing jumps.
  const [proposed, doubted] = ["proposed", "doubted"].map(name => place.querySelector(`.${name}`) || make("div", { className: name }));
  const all = known.groups.length ? [make("h2", { textContent: "All groups" }), ...allGroups(open, again)] : [];
  const learning = known.may_change ? [improvement()] : [];
  place.replaceChildren(tools(open), proposed, ...learning, doubted, ...all);
  if (!known.may_change) return;
  if (!proposed.children.length) proposed.append(make("p", { className: "quiet", textContent: "Looking for pictures that show the same ..." }));
  const found = await ask("v1/proposals");
  const fresh = found.groups.map(({ ids, label }) => ({ label, ids: ids.filter(id => !left.has(`${id}\n${label}`)) }));
  const shown = fresh.filter(({ ids, label }) => ids.length > (label ? 0 : 1)).slice(0, AT_ONCE);
  const done = form => {
    form.remove();
    say(count());
    const next = proposed.querySelector("form input[type=text]");
    if (next) next.focus();
    else again();
  };
  proposed.replaceChildren(shown.length
    ? section("Do these show the same?", "Take out what does not belong by a click on it.", ...shown.map(one => proposal(one, done)))
    : make("p", { className: "quiet", textContent: "No pictures without a group resemble each other enough to be proposed as one." }));
  const { doubts: wrong } = await ask("v1/doubts"), doubts = wrong.filter(one => !left.has(`${one.id}\n${one.label}`)).slice(0, DOUBTS);
  const list = () => make("ol", { className: "gallery" }, ...doubts.map(one => doubt(one, again)));
  doubted.replaceChildren(...doubts.length ? [section("Is this right?", "These pictures resemble those of another group more than those of their own.", list())] : []);
}

// The groups, some at a time: thousands at once would stop the browser.
function allGroups(open, again) {
  const made = (first, end) => known.groups.slice(first, end).map(one => group(one, open, again));
  const groups = make("div", { className: "groups" }, ...made(0, listed));
  const more = button("More groups", () => {
    const first = listed;
    groups.append(...made(first, listed += SHOWN));
    more.hidden = listed >= known.groups.length;
    groups.children[first].querySelector("button").focus();
  }, { className: "plain", hidden: listed >= known.groups.length });
  return [groups, more];
}

// The line above: how much has a label, and what acts on all of it.
function tools(open) {
  const rest = known.images - labelled();
  const line = make("div", { className: "tools" });
  if (rest) line.append(button(`${pictures(rest)} without a group`, () => open("")));
  if (known.may_change && known.undo) line.append(button(`Undo the last change (${pictures(known.undo)})`, undo));
  const words = known.note || (known.may_change ? "" : WAYS[known.secret]);
  if (words) line.append(make("p", { className: "quiet", textContent: words }));
  return line;
}

function proposal({ ids, label }, done) {
  const list = make("ol", { className: "gallery" }, ...ids.map(id => picture({ id })));
  for (const pick of list.querySelectorAll(".pick")) pick.checked = true;
  const leave = some => some.forEach(id => left.add(`${id}\n${label}`));
  const skip = () => { leave(ids); done(form); };
  const row = make("div", { className: "row" }, nameField(label, "What these pictures show"),
    make("button", { className: "main", textContent: "These show the same" }), button("Skip", skip, { className: "plain" }));
  const form = make("form", { className: "proposal" }, list, row);
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const chosen = [...form.querySelectorAll("li")].filter(card => card.querySelector(".pick").checked).map(card => card.dataset.id);
    const name = form.querySelector("input[type=text]").value.trim() || freeName();
    if (!chosen.length) skip();
    else if (await give({ ids: chosen, label: name })) {
      leave(ids.filter(id => !chosen.includes(id)));
      done(form);
    }
  });
  return form;
}

function doubt({ id, label, suggestion }, again) {
  const card = picture({ id, metadata: { label } });
  const say = async name => { if (await give({ ids: [id], label: name })) again(); };
  const keep = () => { left.add(`${id}\n${label}`); card.remove(); };
  card.append(make("div", { className: "row" }, button(suggestion, () => say(suggestion), { ariaLabel: `It is ${suggestion}` }),
    button("Keep", keep, { className: "plain", ariaLabel: `Keep ${label}` })));
  return card;
}

function group({ label, images, ids }, open, again) {
  const title = make("h3", {}, button(label, () => open(label), { className: "plain" }));
  const rename = button("Rename", () => {
    const field = nameField(label, `New name of ${label}`), form = make("form", { className: "row" }, field, make("button", { textContent: "Rename" }));
    form.addEventListener("submit", async event => {
      event.preventDefault();
      const name = field.value.trim();
      if (!name || name === label || await give({ group: label, label: name })) again();
    });
    form.addEventListener("keydown", event => { if (event.key === "Escape") again(); });
    head.replaceChildren(form);
    field.focus();
    field.select();
  }, { className: "plain", ariaLabel: `Rename ${label}` });
  const head = make("div", { className: "line" }, title, make("span", { className: "quiet", textContent: pictures(images) }), ...known.may_change ? [rename] : []);
  const strip = make("ol", { className: "gallery strip" }, ...ids.map(id => picture({ id, metadata: { label } }, () => open(label))));
  return make("section", { className: "group" }, head, strip);
}
