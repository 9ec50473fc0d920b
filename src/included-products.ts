/** Access to the products, any of which a reduced program may lack. */
import { ProxyError } from './base/errors.ts'
import * as all from './products.ts'

type Products = typeof all

export type EmbeddedEngineConfig = all.embedded.EmbeddedEngineConfig
export type ServerRolloutsConfig = all.rollouts.ServerRolloutsConfig

/** Returns whether a server runs rollouts or forwards them. */
export function hasRollouts({ runner, rolloutServer }: ServerRolloutsConfig): boolean {
  return (runner ?? rolloutServer) !== undefined
}

export const products: Partial<Products> = all

const NAMES: Record<keyof Products, string> = {
  embedded: 'the embedded engine',
  inspector: 'the inspector',
  postgres: 'PostgreSQL',
  rollouts: 'rollouts',
}

/**
 * Returns a product that the configuration needs.
 * @param remedy what to do if the program lacks it. Default: nothing helps
 * @throws ProxyError `config_invalid` if the program lacks it
 */
export function requireProduct<Name extends keyof Products>(name: Name, remedy?: string): Products[Name] {
  const product = products[name]
  if (product) return product
  const reason = `This program was built without ${NAMES[name]}`
  throw new ProxyError('config_invalid', remedy === undefined ? reason : `${reason}: ${remedy}`)
}
