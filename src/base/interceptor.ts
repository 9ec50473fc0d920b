/** Observation that stays off the path: a port with some of its methods watched. */

/** What is done around calls of some methods. Each gets what makes the call, and has to make it once. */
export type Interceptor<T> = {
  [M in keyof T]?: T[M] extends (...args: infer Args) => infer Result
    ? (call: () => Result, ...args: Args) => Result
    : never
}

type Method = (...args: unknown[]) => unknown

/** @returns a port that does what `port` does; calls of the methods in `around` go through there */
export function intercept<T extends object>(port: T, around: Interceptor<T>): T {
  const methods = new Map<PropertyKey, Method>()
  const watchers = around as Record<
    PropertyKey,
    ((call: () => unknown, ...args: unknown[]) => unknown) | undefined
  >
  return new Proxy(port, {
    get(_port, name) {
      const known = methods.get(name)
      if (known) return known
      // The port itself as the receiver: what it is asked for may be private to it.
      const value: unknown = Reflect.get(port, name, port)
      if (typeof value !== 'function') return value
      const method = (value as Method).bind(port) as Method
      const watcher = watchers[name]
      const made: Method = watcher ? (...args) => watcher(() => method(...args), ...args) : method
      methods.set(name, made)
      return made
    },
  })
}
