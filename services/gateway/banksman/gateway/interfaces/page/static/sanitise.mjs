/** Sanitise markup by an allow-list. Text of the model reaches the document only through this function. */

import DOMPurify from 'dompurify';

const words = (/** @type {string} */ text) => text.trim().split(/\s+/);

const ALLOWED_TAGS = words(`
  a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i input ins kbd li mark ol
  p pre q s samp small span strong sub summary sup table tbody td tfoot th thead tr u ul var
`);
const MATHS_TAGS = words(`
  math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mroot mrow ms mspace msqrt mstyle msub
  msubsup msup mtable mtd mtext mtr munder munderover semantics
`);
const MATHS_ATTR = words(`
  accent accentunder columnalign columnspacing display displaystyle fence linethickness lspace mathvariant
  maxsize minsize movablelimits rowspacing rspace scriptlevel separator stretchy symmetric width
`);
const ALLOWED_ATTR = words(`
  align checked class colspan disabled href open rowspan start tabindex title type
`);
const ALLOWED_LINKS = /^(?:https?|mailto):/i;
const OWN_CLASSES =
  /^(hljs[\w-]*|table|number|language-[\w+#.-]+|function_|class_|inherited__|invoke__|escape_)$/;

DOMPurify.addHook('afterSanitizeAttributes', (node) => {
  if (node.hasAttribute('class')) keepOwnClasses(node);
  if (node.tagName === 'A') safeLink(node);
  else node.removeAttribute('href');
  if (node.tagName === 'INPUT' && node.getAttribute('type') !== 'checkbox') node.remove();
});

function keepOwnClasses(/** @type {Element} */ node) {
  const kept = [...node.classList].filter((name) => OWN_CLASSES.test(name));
  if (kept.length) node.setAttribute('class', kept.join(' '));
  else node.removeAttribute('class');
}

function safeLink(/** @type {Element} */ node) {
  if (!ALLOWED_LINKS.test(node.getAttribute('href') ?? '')) node.removeAttribute('href');
  node.setAttribute('target', '_blank');
  node.setAttribute('rel', 'noopener noreferrer nofollow');
}

DOMPurify.setConfig({
  ALLOWED_TAGS: [...ALLOWED_TAGS, ...MATHS_TAGS],
  ALLOWED_ATTR: [...ALLOWED_ATTR, ...MATHS_ATTR],
  ALLOW_DATA_ATTR: false,
  RETURN_TRUSTED_TYPE: 'trustedTypes' in globalThis,
});

/** @param {string} html @returns {string | TrustedHTML} */
export const sanitise = (html) => DOMPurify.sanitize(html);
