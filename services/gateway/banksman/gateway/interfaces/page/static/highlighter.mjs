/** A worker that colours code. The grammars can take minutes for a text of 50 KB, so it is ended at a deadline. */

import hljs from './vendor/highlightjs-cdn-assets/highlight.mjs';

addEventListener('message', ({ data: { language, source } }) => {
  const known = hljs.getLanguage(language);
  postMessage(known ? hljs.highlight(source, { language, ignoreIllegals: true }).value : null);
});
