// What makes a page livelier; without it each page is whole, too.
const root = document.documentElement;

// The theme that somebody chose before.
const theme = localStorage.getItem('theme');
if (theme) root.dataset.theme = theme;

const main = document.querySelector('main');
const status = document.querySelector('[data-live-status]');
const say = (text, isOn) => {
  if (!status) return;
  const label = status.querySelector('[data-live-text]');
  if (label && label.textContent !== text) label.textContent = text;
  status.querySelector('.live-dot')?.classList.toggle('off', !isOn);
};

// Times as they are here, beside what the server wrote.
const local = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
function enliven(of) {
  for (const time of of.querySelectorAll('time[datetime]')) {
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.valueOf())) time.title = `${local.format(at)} here`;
  }
  for (const button of of.querySelectorAll('[data-copy]')) button.hidden = false;
}
// Parts as the server sent them, before they are made livelier: by these is seen whether one has changed.
const sent = new WeakMap();
const keep = (of) => { for (const part of of.querySelectorAll('[data-live]')) sent.set(part, part.innerHTML); };
const parts = (of) => [...of.querySelectorAll('[data-live]')].map((one) => one.id).join();
keep(document);
enliven(document);

// Parts of the page that change are taken from the page as it is now.
let busy = false;
let again = false;
let later;
const isWatched = () => !paused && !document.hidden;
async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const response = await fetch(location.href, { headers: { accept: 'text/html' } });
    if (response.redirected) throw new Error('sign in again');
    // A page whose main part is away has its others, and says why.
    if (!response.headers.get('content-type')?.startsWith('text/html')) throw new Error(`status ${response.status}`);
    const now = new DOMParser().parseFromString(await response.text(), 'text/html');
    // Where other parts are there than before, all of them are taken.
    for (const frame of document.querySelectorAll('[data-live-frame]')) {
      const fresh = now.getElementById(frame.id);
      // Where it can't be told anew, what is there stays, and is said to be old.
      if (!fresh || frame.contains(document.activeElement) || (response.status >= 500 && parts(frame))) continue;
      if (parts(frame) === parts(fresh)) continue;
      frame.replaceChildren(...[...fresh.childNodes].map((one) => document.importNode(one, true)));
      keep(frame);
      enliven(frame);
    }
    for (const part of document.querySelectorAll('[data-live]')) {
      const fresh = now.getElementById(part.id);
      if (!fresh || part.contains(document.activeElement) || sent.get(part) === fresh.innerHTML) continue;
      sent.set(part, fresh.innerHTML);
      const open = [...part.querySelectorAll('details')].map((one) => one.open);
      part.replaceChildren(...fresh.childNodes);
      part.querySelectorAll('details').forEach((one, at) => { one.open = open[at] ?? one.open; });
      enliven(part);
    }
    // What was asked for wrongly, or is not there, is not out of date.
    if (response.status >= 500 || response.status === 429) throw new Error(`status ${response.status}`);
    main.classList.remove('stale');
    say('Live', true);
  } catch (error) {
    main.classList.add('stale');
    say(`Not up to date: ${error.message}`, false);
    // Nothing may move when it can be told again.
    clearTimeout(later);
    later = setTimeout(() => { if (isWatched()) refresh(); }, 10_000);
  } finally {
    busy = false;
    if (again) { again = false; setTimeout(refresh, 250); }
  }
}

const source = main?.dataset.follow;
let events = null;
function follow() {
  if (!source || events) return;
  events = new EventSource(`/live?source=${encodeURIComponent(source)}`);
  events.addEventListener('moved', refresh);
  events.addEventListener('open', () => say('Live', true));
  events.addEventListener('error', () => {
    if (events?.readyState !== EventSource.CLOSED) { say('Waiting for the service …', false); return; }
    // It was refused, and a browser does not ask again by itself: the page says why.
    events = null;
    refresh();
    setTimeout(() => { if (isWatched()) follow(); }, 30_000);
  });
}
function rest() {
  events?.close();
  events = null;
  say('Paused', false);
}
const pause = document.querySelector('[data-live-pause]');
let paused = false;
pause?.addEventListener('click', () => {
  paused = !paused;
  pause.setAttribute('aria-pressed', String(paused));
  if (paused) rest(); else { follow(); refresh(); }
});
document.addEventListener('visibilitychange', () => {
  if (document.hidden) rest(); else if (!paused) { follow(); refresh(); }
});
if (source) {
  status?.removeAttribute('hidden');
  follow();
}

// Commands to the clipboard.
document.addEventListener('click', async (event) => {
  const button = event.target.closest('[data-copy]');
  if (!button) return;
  const text = button.parentElement.querySelector('code')?.textContent ?? '';
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'Select it and copy';
  }
  setTimeout(() => { button.textContent = 'Copy'; }, 2000);
});

const themes = document.querySelector('[data-theme-switch]');
if (themes) {
  themes.hidden = false;
  const named = () => `Theme: ${root.dataset.theme ?? 'as the system'}`;
  themes.textContent = named();
  themes.addEventListener('click', () => {
    const next = { undefined: 'light', light: 'dark', dark: undefined }[root.dataset.theme];
    if (next) { root.dataset.theme = next; localStorage.setItem('theme', next); }
    else { delete root.dataset.theme; localStorage.removeItem('theme'); }
    themes.textContent = named();
  });
}

// Keys, as they are listed under ?.
const help = document.getElementById('keys');
const off = () => localStorage.getItem('keys') === 'off';
const toggle = document.querySelector('[data-keys-switch]');
if (toggle) {
  toggle.checked = !off();
  toggle.addEventListener('change', () => {
    if (toggle.checked) localStorage.removeItem('keys'); else localStorage.setItem('keys', 'off');
  });
}
const shown = document.querySelector('[data-keys-open]');
if (shown && help) {
  shown.hidden = false;
  shown.addEventListener('click', () => help.showModal());
}
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, select, textarea')) return;
  if (off()) return;
  if (event.key === '?') { help?.showModal(); event.preventDefault(); return; }
  const target = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (!target) return;
  event.preventDefault();
  if (target.matches('input, select')) target.focus(); else target.click();
});
