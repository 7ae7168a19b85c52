from .charts import Picture as Picture
from .charts import bars as bars
from .charts import losses as losses
from .prediction import Prediction as Prediction
from .stepper import Stepper as Stepper
