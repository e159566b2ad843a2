/** For vendored packages that have no types. */
declare const anything: any;
export default anything;
