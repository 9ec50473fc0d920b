/** Reads the objects of deploy.yaml, or of a copy of it, by kind and name. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { IDeployment } from 'kubernetes-models/apps/v1'
import type { IHorizontalPodAutoscaler } from 'kubernetes-models/autoscaling/v2'
import type { INetworkPolicy } from 'kubernetes-models/networking.k8s.io/v1'
import type { IPodDisruptionBudget } from 'kubernetes-models/policy/v1'
import type { IConfigMap, INamespace, IPersistentVolumeClaim, ISecret, IService } from 'kubernetes-models/v1'
import { parseAllDocuments } from 'yaml'

interface Kinds {
  Namespace: INamespace
  ConfigMap: IConfigMap
  Secret: ISecret
  HorizontalPodAutoscaler: IHorizontalPodAutoscaler
  Service: IService
  PodDisruptionBudget: IPodDisruptionBudget
  NetworkPolicy: INetworkPolicy
  Deployment: IDeployment
  PersistentVolumeClaim: IPersistentVolumeClaim
}

export type KubernetesObject = Kinds[keyof Kinds]

export function readObjects(path: string): readonly KubernetesObject[] {
  return parseObjects(readFileSync(path, 'utf8'))
}

export function parseObjects(text: string): readonly KubernetesObject[] {
  return parseAllDocuments(text).map((document) => document.toJS())
}

export const OBJECTS = readObjects(join(import.meta.dirname, '../../deploy.yaml'))

export function getObject<K extends keyof Kinds>(kind: K, name: string, objects = OBJECTS): Kinds[K] {
  const found = objects.find((object) => object.kind === kind && object.metadata?.name === name)
  if (found === undefined) throw new Error(`there is no ${kind} ${name}`)
  return found as Kinds[K]
}
