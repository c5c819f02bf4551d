// Live updates and shortcuts. Pages are complete without this script.
const root = document.documentElement;

// The selected theme.
const theme = localStorage.getItem('theme');
if (theme) root.dataset.theme = theme;

const main = document.querySelector('main');
const status = document.querySelector('[data-live-status]');
const showStatus = (text, isOn) => {
  if (!status) return;
  const label = status.querySelector('[data-live-text]');
  if (label && label.textContent !== text) label.textContent = text;
  status.querySelector('.live-dot')?.classList.toggle('off', !isOn);
};

// Adds the local time to times that the server rendered.
const localFormat = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
function enhance(root) {
  for (const time of root.querySelectorAll('time[datetime]')) {
    const date = new Date(time.dateTime);
    if (!Number.isNaN(date.valueOf())) time.title = `${localFormat.format(date)} local time`;
  }
  for (const button of root.querySelectorAll('[data-copy]')) button.hidden = false;
}
// HTML of the live parts as the server sent it, before enhancement, to detect changes.
const sentHtml = new WeakMap();
const remember = (root) => { for (const part of root.querySelectorAll('[data-live]')) sentHtml.set(part, part.innerHTML); };
const partIds = (root) => [...root.querySelectorAll('[data-live]')].map((part) => part.id).join();
remember(document);
enhance(document);

// Replaces live parts by those of the current page.
let isRefreshing = false;
let needsRefresh = false;
let retryTimer;
const isWatched = () => !paused && !document.hidden;
async function refresh() {
  if (isRefreshing) { needsRefresh = true; return; }
  isRefreshing = true;
  try {
    const response = await fetch(location.href, { headers: { accept: 'text/html' } });
    if (response.redirected) throw new Error('sign in again');
    // A page whose main part failed still has its other parts and shows the error.
    if (!response.headers.get('content-type')?.startsWith('text/html')) throw new Error(`status ${response.status}`);
    const newPage = new DOMParser().parseFromString(await response.text(), 'text/html');
    // If the set of parts changed, replace the whole frame.
    for (const frame of document.querySelectorAll('[data-live-frame]')) {
      const newPart = newPage.getElementById(frame.id);
      // If the server failed, keep the old content and mark it as outdated.
      if (!newPart || frame.contains(document.activeElement) || (response.status >= 500 && partIds(frame))) continue;
      if (partIds(frame) === partIds(newPart)) continue;
      frame.replaceChildren(...[...newPart.childNodes].map((node) => document.importNode(node, true)));
      remember(frame);
      enhance(frame);
    }
    for (const part of document.querySelectorAll('[data-live]')) {
      const newPart = newPage.getElementById(part.id);
      if (!newPart || part.contains(document.activeElement) || sentHtml.get(part) === newPart.innerHTML) continue;
      sentHtml.set(part, newPart.innerHTML);
      const wasOpen = [...part.querySelectorAll('details')].map((details) => details.open);
      part.replaceChildren(...newPart.childNodes);
      part.querySelectorAll('details').forEach((details, index) => { details.open = wasOpen[index] ?? details.open; });
      enhance(part);
    }
    // Client errors do not make the page outdated.
    if (response.status >= 500 || response.status === 429) throw new Error(`status ${response.status}`);
    main.classList.remove('stale');
    showStatus('Live', true);
  } catch (error) {
    main.classList.add('stale');
    showStatus(`Not up to date: ${error.message}`, false);
    // Retry, since no event may follow when the service recovers.
    clearTimeout(retryTimer);
    retryTimer = setTimeout(() => { if (isWatched()) refresh(); }, 10_000);
  } finally {
    isRefreshing = false;
    if (needsRefresh) { needsRefresh = false; setTimeout(refresh, 250); }
  }
}

const source = main?.dataset.follow;
let events = null;
function follow() {
  if (!source || events) return;
  events = new EventSource(`/live?source=${encodeURIComponent(source)}`);
  events.addEventListener('moved', refresh);
  events.addEventListener('open', () => showStatus('Live', true));
  events.addEventListener('error', () => {
    if (events?.readyState !== EventSource.CLOSED) { showStatus('Waiting for the service …', false); return; }
    // A refused stream is not reopened by the browser: the page shows the reason.
    events = null;
    refresh();
    setTimeout(() => { if (isWatched()) follow(); }, 30_000);
  });
}
function stopFollowing() {
  events?.close();
  events = null;
  showStatus('Paused', false);
}
const pause = document.querySelector('[data-live-pause]');
let paused = false;
pause?.addEventListener('click', () => {
  paused = !paused;
  pause.setAttribute('aria-pressed', String(paused));
  if (paused) stopFollowing(); else { follow(); refresh(); }
});
document.addEventListener('visibilitychange', () => {
  if (document.hidden) stopFollowing(); else if (!paused) { follow(); refresh(); }
});
if (source) {
  status?.removeAttribute('hidden');
  follow();
}

// Copies commands to the clipboard.
document.addEventListener('click', async (event) => {
  const button = event.target.closest('[data-copy]');
  if (!button) return;
  const text = button.parentElement.querySelector('code')?.textContent ?? '';
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'Select and copy it';
  }
  setTimeout(() => { button.textContent = 'Copy'; }, 2000);
});

const themeButton = document.querySelector('[data-theme-switch]');
if (themeButton) {
  themeButton.hidden = false;
  const themeLabel = () => `Theme: ${root.dataset.theme ?? 'system'}`;
  themeButton.textContent = themeLabel();
  themeButton.addEventListener('click', () => {
    const next = { undefined: 'light', light: 'dark', dark: undefined }[root.dataset.theme];
    if (next) { root.dataset.theme = next; localStorage.setItem('theme', next); }
    else { delete root.dataset.theme; localStorage.removeItem('theme'); }
    themeButton.textContent = themeLabel();
  });
}

// Keyboard shortcuts; ? lists them.
const help = document.getElementById('keys');
const areShortcutsOff = () => localStorage.getItem('keys') === 'off';
const shortcutSwitch = document.querySelector('[data-keys-switch]');
if (shortcutSwitch) {
  shortcutSwitch.checked = !areShortcutsOff();
  shortcutSwitch.addEventListener('change', () => {
    if (shortcutSwitch.checked) localStorage.removeItem('keys'); else localStorage.setItem('keys', 'off');
  });
}
const helpButton = document.querySelector('[data-keys-open]');
if (helpButton && help) {
  helpButton.hidden = false;
  helpButton.addEventListener('click', () => help.showModal());
}
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, select, textarea')) return;
  if (areShortcutsOff()) return;
  if (event.key === '?') { help?.showModal(); event.preventDefault(); return; }
  const target = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (!target) return;
  event.preventDefault();
  if (target.matches('input, select')) target.focus(); else target.click();
});
