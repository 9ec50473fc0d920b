/** Intercepts methods of a port for observation. */

/**
 * Wrappers of methods. Each receives a function that calls the method, and must invoke it once: without arguments to
 * pass the original ones, or with replacements.
 */
export type Interceptor<T> = {
  [M in keyof T]?: T[M] extends (...args: infer Args) => infer Result
    ? (call: (...changed: Args | []) => Result, ...args: Args) => Result
    : never
}

type Method = (...args: unknown[]) => unknown

/** Returns a port that behaves like `port`, with calls of the methods in `around` passed through their wrappers. */
export function intercept<T extends object>(port: T, around: Interceptor<T>): T {
  const methods = new Map<PropertyKey, Method>()
  const watchers = around as Record<
    PropertyKey,
    ((call: (...changed: unknown[]) => unknown, ...args: unknown[]) => unknown) | undefined
  >
  return new Proxy(port, {
    get(_port, name) {
      const existing = methods.get(name)
      if (existing) return existing
      // The receiver is the port itself, because its getters may use private fields.
      const value: unknown = Reflect.get(port, name, port)
      if (typeof value !== 'function') return value
      const method = (value as Method).bind(port) as Method
      const watcher = watchers[name]
      const made: Method = watcher
        ? (...args) => watcher((...changed) => method(...(changed.length > 0 ? changed : args)), ...args)
        : method
      methods.set(name, made)
      return made
    },
  })
}
