/** Module hooks: resolve names of the import map, and leave everything else to Node. */

let imports = {};

export function initialize(map) {
  imports = map;
}

export function resolve(specifier, context, next) {
  const url = imports[specifier];
  return url ? { url, format: 'module', shortCircuit: true } : next(specifier, context);
}

export function load(url, context, next) {
  const vendored = url.includes('/static/vendor/') ? { ...context, format: 'module' } : context;
  return next(url, vendored);
}
