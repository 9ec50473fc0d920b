/** Access to the products, any of which a reduced program may lack. */
import { ProxyError } from './base/errors.ts'
import * as all from './products.ts'

type Products = typeof all

export type ServerRolloutsConfig = all.rollouts.ServerRolloutsConfig

export const products: Partial<Products> = all

const NAMES: Record<keyof Products, string> = {
  embedded: 'the embedded engine',
  inspector: 'the inspector',
  postgres: 'PostgreSQL',
  rollouts: 'rollouts',
}

/** Returns a product that the configuration needs. @throws ProxyError `config_invalid` if the program lacks it */
export function requireProduct<Name extends keyof Products>(name: Name): Products[Name] {
  const product = products[name]
  if (product) return product
  throw new ProxyError('config_invalid', `This program was built without ${NAMES[name]}`)
}
