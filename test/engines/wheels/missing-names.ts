/** An engine's sources as `read_wheel.py` reports them. */
export interface Wheel {
  routes: readonly string[]
  /** Fields of classes, with their defaults as source text. */
  classes: Readonly<Record<string, Readonly<Record<string, string | null>>>>
  /** Every name and text in the sources. */
  names: readonly string[]
}

/** What a client requires of an engine. */
export interface RequiredNames {
  routes?: readonly string[]
  fields?: Readonly<Record<string, readonly string[]>>
  defaults?: Readonly<Record<string, Readonly<Record<string, string>>>>
  /** Keys of responses that are built without a class. */
  names?: readonly string[]
  /** Classes whose modules build the responses with these names. */
  builders?: readonly string[]
}

/** Returns a line for each required name that the wheel lacks. */
export function findMissing(
  { routes = [], fields = {}, defaults = {}, names = [] }: RequiredNames,
  wheel: Wheel,
): string[] {
  const has = (name: string, field: string) => Object.hasOwn(wheel.classes[name] ?? {}, field)
  return [
    ...routes.filter((route) => !wheel.routes.includes(route)).map((route) => `route ${route}`),
    ...Object.entries(fields).flatMap(([name, list]) =>
      wheel.classes[name] === undefined
        ? [`class ${name}`]
        : list.filter((field) => !has(name, field)).map((field) => `field ${field} of ${name}`),
    ),
    ...Object.entries(defaults).flatMap(([name, values]) =>
      Object.entries(values)
        .filter(([field, value]) => wheel.classes[name]?.[field] !== value)
        .map(([field, value]) => `default ${value} of ${name}.${field}, now ${wheel.classes[name]?.[field]}`),
    ),
    ...names.filter((name) => !wheel.names.includes(name)).map((name) => `name ${name}`),
  ]
}
